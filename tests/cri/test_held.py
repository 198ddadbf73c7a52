"""Held calls: when they are asked, what they become, how they end (relay-rules A4 to A7, A13, C1, C2, C5)."""

import gzip
from collections.abc import Callable

import pytest

from runtimeproxy.call import UNANSWERED, CallState, Reply
from runtimeproxy.cri import bounds
from tests.cri.peer import (
    CREATE,
    REPLY,
    TRAILERS,
    Ack,
    Credit,
    Data,
    Fields,
    Frame,
    Headers,
    Play,
    Reset,
    Settings,
    greeted,
    grpc,
    refusal,
)

MESSAGE = grpc(b"the request")
ANSWER: list[Frame] = [Headers(1, REPLY), Data(1, grpc(b"the reply"))]
END = Headers(1, TRAILERS, end=True)


def holding(*more: Frame, play: Play | None = None) -> Play:
    """Return a pair that holds one call, whose request has half-closed unless ``more`` is still to follow."""
    play = play or greeted()
    play.client.sends(Headers(1, CREATE), Data(1, MESSAGE, end=not more), *more)
    play.client.got()
    assert play.runtime.got() == [Headers(1, CREATE)]
    return play


def released(*more: Frame) -> Play:
    """Return a pair whose one call was released unchanged."""
    play = holding(*more)
    assert play.call.release(None)
    play.runtime.got()
    play.client.got()
    return play


# ---- A5: when a request is whole


def test_a5_the_front_is_asked_when_the_prefix_is_satisfied() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE), Data(1, MESSAGE[:3]), Data(1, MESSAGE[3:-1]))
    assert play.events.calls == []
    play.client.sends(Data(1, MESSAGE[-1:]))
    assert (play.call.message, play.call.problem, play.call.route.operation.value) == (
        b"the request",
        "",
        "CreateContainer",
    )
    assert play.runtime.got() == [Headers(1, CREATE)]


@pytest.mark.parametrize(
    "more", [[Data(1, b"", end=True)], [END], [Data(1, b"late"), Data(1, b"r", end=True)], [Data(1, b"l"), END]]
)
def test_a5_what_comes_later_queues_behind_the_released_data(more: list[Frame]) -> None:
    play = holding(*more)
    assert play.call.release(None)
    [message, *rest] = play.runtime.got()
    late = b"".join(frame.payload for frame in more if isinstance(frame, Data))
    assert message == Data(1, MESSAGE, end=not late and END not in more)
    assert rest == [Data(1, late, end=END not in more)] * bool(late) + [END] * (END in more)


def test_a5_what_comes_after_the_release_passes_behind_it() -> None:
    play = holding(Data(1, b""))
    assert play.call.release(None)
    play.client.sends(Data(1, b"later", pad=3), END)
    assert play.runtime.got() == [Data(1, MESSAGE), Data(1, b"later"), END]
    assert play.client.got() == [Credit(1, 9)]


@pytest.mark.parametrize(
    ("fields", "frames", "problem"),
    [
        pytest.param(CREATE, [Data(1, b"\x00\x01\x00\x00\x01")], "longer than the limit", id="prefix above the limit"),
        pytest.param(CREATE, [Data(1, MESSAGE + b"\x00")], "not exactly one", id="second message"),
        pytest.param(CREATE, [Data(1, MESSAGE[:4], end=True)], "ends inside", id="cut by END_STREAM"),
        pytest.param(CREATE, [Data(1, MESSAGE[:-1]), END], "ends inside", id="cut by trailers"),
        pytest.param(CREATE, [END], "ends inside", id="trailers only"),
        pytest.param(CREATE, [Data(1, b"", end=True)], "ends inside", id="empty"),
        pytest.param(CREATE, [Data(1, b"\x02" + MESSAGE[1:])], "compressed flag", id="flag"),
        pytest.param(CREATE, [Data(1, grpc(b"x", 1))], "unknown compression", id="compression"),
        pytest.param(
            (*CREATE[:4], (b"content-type", b"application/grpc+json")), [Data(1, MESSAGE)], "content type", id="json"
        ),
        pytest.param(CREATE[:4], [Data(1, MESSAGE)], "content type", id="no content type"),
    ],
)
def test_a5_what_cannot_be_read_is_told_and_passes_unchanged(fields: Fields, frames: list[Frame], problem: str) -> None:
    play = greeted()
    play.client.sends(Headers(1, fields), *frames)
    assert play.call.message is None
    assert problem in play.call.problem
    assert play.call.release(None)
    assert play.runtime.got() == [Headers(1, fields), *frames]


def test_a5_a_request_that_ended_with_its_headers_is_told_and_nothing_follows_them() -> None:
    play = greeted()
    play.client.sends(Headers(1, CREATE, end=True))
    assert "ends inside" in play.call.problem
    assert play.call.release(None)
    assert play.runtime.got() == [Headers(1, CREATE, end=True)]


def test_a5_grpc_proto_is_read_and_gzip_is_undone() -> None:
    play = greeted()
    fields = (*CREATE[:4], (b"content-type", b"application/grpc+proto"), (b"grpc-encoding", b"gzip"))
    play.client.sends(Headers(1, fields), Data(1, grpc(gzip.compress(b"packed"), 1), end=True))
    assert play.call.message == b"packed"
    assert play.call.release(b"changed")
    assert play.runtime.got() == [Headers(1, fields), Data(1, grpc(b"changed"), end=True)]


def test_a5_a_reset_overtakes_the_held_request() -> None:
    play = holding(Data(1, b""))
    ended: list[bool] = []
    play.call.on_ended = lambda: ended.append(True)
    play.client.sends(Reset(1, 8))
    assert play.runtime.got() == [Reset(1, 8)]
    assert (play.call.state, play.call.reply, ended) == (CallState.ENDED, UNANSWERED, [True])
    assert not play.call.release(None)
    assert play.runtime.got() == []


# ---- A4: the request half of a held stream is hop by hop


def test_a_call_begins_with_its_headers_and_not_with_the_end_of_its_message() -> None:
    play = greeted()
    play.now = 3.0
    play.client.sends(Headers(1, CREATE), Data(1, grpc(b"create")[:4]))
    play.now = 5.0
    play.client.sends(Data(1, grpc(b"create")[4:], end=True))
    assert play.call.began == 3.0


def test_a4_held_bytes_are_credited_at_once_up_to_the_message() -> None:
    play = greeted()
    large = grpc(bytes(2**18))
    play.client.sends(Headers(1, CREATE), *[Data(1, large[at : at + 16_384]) for at in range(0, len(large), 16_384)])
    credits = play.client.got()
    assert credits.count(Credit(1, 16_384)) == 16
    assert Credit(0, 2**18) in credits
    play.client.sends(*[Data(1, bytes(16_384))] * 20)
    assert play.client.got() == []
    assert play.runtime.got() == [Headers(1, CREATE)]


@pytest.mark.parametrize("end", [True, False])
def test_a4_what_came_behind_the_message_is_credited_when_it_leaves_or_is_dropped(end: bool) -> None:
    late = [Data(1, bytes(16_384))] * 15 + [Data(1, bytes(16_384), end=end)]
    play = holding(*late, play=Play().greet(runtime=Settings(((4, 2**20),))))
    assert play.call.release(None)
    assert play.client.got() == [Credit(1, 2**18)] * (not end)
    play.runtime.sends(Credit(0, 2**20))
    assert play.client.got() == [Credit(0, 2**18 + len(MESSAGE))]
    play = holding(*late)
    assert play.call.refuse(13, "no")
    assert play.client.got()[0] == Credit(0, 2**18 + len(MESSAGE))


def test_a4_the_runtimes_credit_is_ours_and_release_obeys_every_window_and_frame_size() -> None:
    play = Play().greet(runtime=Settings(((4, 10), (5, 16_384))))
    large = grpc(bytes(70_000))
    play.client.sends(Headers(1, CREATE), *[Data(1, large[at : at + 14_001]) for at in range(0, 70_005, 14_001)])
    assert play.call.release(None)
    assert play.runtime.got() == [Headers(1, CREATE), Data(1, large[:10])]
    play.runtime.sends(Credit(1, 5))
    assert play.runtime.got() == [Data(1, large[10:15])]
    play.runtime.sends(Settings(((4, 20_010),)))
    assert play.runtime.got() == [], "the runtime has no ACK of these yet"
    play.client.sends(Ack())
    assert play.runtime.got() == [Ack(), Data(1, large[15:16_399]), Data(1, large[16_399:20_015])]
    play.runtime.sends(Credit(1, 2**20))
    assert sum(len(frame.payload) for frame in play.runtime.got() if isinstance(frame, Data)) == 65_535 - 20_015
    assert [frame for frame in play.client.got() if isinstance(frame, Credit) and frame.increment == 5] == []
    play.runtime.sends(Credit(0, 2**20))
    assert play.runtime.got() == [Data(1, large[65_535:])]


def test_a4_the_clients_credit_for_the_reply_passes() -> None:
    play = holding()
    play.client.sends(Credit(1, 77))
    assert play.runtime.got() == [Credit(1, 77)]


# ---- A6: replies


def test_a6_a_reply_passes_as_it_comes_and_only_its_end_is_kept() -> None:
    play = released()
    play.runtime.sends(*ANSWER)
    assert play.client.got() == ANSWER
    told: list[Reply | None] = []
    play.call.on_reply = lambda: told.append(play.call.reply)
    play.runtime.sends(END)
    assert play.client.got() == []
    assert told == [Reply(agreed=True, message=b"the reply")]
    assert play.call.kept
    play.call.answer()
    assert play.client.got() == [END]
    play.call.answer()
    assert (play.client.got(), play.reader.held, play.events.wakes) == ([], [], 2)


def test_a6_an_end_in_data_is_kept_too_and_a_later_reset_stays_behind_it() -> None:
    play = released(Data(1, b""))
    play.runtime.sends(Headers(1, REPLY), Data(1, b"x", end=True), Reset(1, 0))
    assert play.client.got() == [Headers(1, REPLY)]
    play.call.answer()
    assert play.client.got() == [Data(1, b"x", end=True), Reset(1, 0)]


def test_a6_reply_frames_that_come_before_the_release_wait_for_it() -> None:
    play = holding()
    play.runtime.sends(Headers(1, REPLY), Data(1, b"early", pad=1))
    assert play.client.got() == []
    play.call.release(None)
    assert play.client.got() == [Headers(1, REPLY), Data(1, b"early", pad=1)]


def test_a6_data_that_wait_for_the_release_are_credited_at_once() -> None:
    play = holding()
    play.runtime.sends(*[Data(1, bytes(16_384))] * 16)
    assert play.runtime.got() == [Credit(0, 2**18)]


def test_a6_what_waits_for_a_client_that_cancels_is_dropped() -> None:
    play = released()
    play.runtime.sends(*[Data(1, bytes(16_384))] * 5)
    play.client.got()
    play.client.sends(Reset(1, 8), Credit(0, 2**20))
    assert play.client.got() == []


def test_a6_a_reply_obeys_the_clients_connection_window_and_is_credited_when_it_has_left() -> None:
    play = released()
    play.runtime.sends(Headers(1, REPLY), *[Data(1, bytes(16_384))] * 16)
    assert len(play.client.got()) == 1 + 4
    assert play.runtime.got() == []
    play.client.sends(Credit(0, 2**20))
    assert play.runtime.got() == [Credit(0, 2**18)]


def test_a6_nothing_reaches_a_client_that_has_cancelled() -> None:
    play = released()
    play.runtime.sends(*ANSWER, END)
    play.client.got()
    play.client.sends(Reset(1, 8))
    play.call.answer()
    assert play.runtime.got() == [Reset(1, 8)]
    assert (play.client.got(), play.call.kept, play.call.reply) == ([], False, Reply(True, b"the reply"))


# ---- A7: refusal


@pytest.mark.parametrize("half_closed", [True, False])
def test_a7_a_refusal_resets_toward_the_runtime_and_answers_the_client(half_closed: bool) -> None:
    play = holding() if half_closed else holding(Data(1, b""))
    assert play.call.refuse(7, "not ßo")
    assert play.runtime.got() == [Reset(1, 8)]
    answer = Headers(1, refusal(7, b"not %C3%9Fo"), end=True)
    assert play.client.got() == [answer] + [Reset(1, 0)] * (not half_closed)
    assert (play.call.state, play.held_bytes.count) == (CallState.REFUSED, 0)
    assert not play.call.refuse(7, "twice")
    assert not play.call.release(None)


def test_a7_what_still_comes_on_a_refused_stream_is_dropped_and_credited() -> None:
    play = holding(Data(1, b""))
    play.call.refuse(7, "no")
    play.runtime.got()
    play.client.got()
    data = [Data(1, bytes(16_384))] * 16
    play.runtime.sends(Headers(1, REPLY), *data, END, Credit(1, 3), Reset(1, 8))
    play.client.sends(*data, END, Credit(1, 4), Reset(1, 8))
    assert play.runtime.got() == [Credit(0, 2**18)]
    assert play.client.got() == [Credit(0, 2**18 + len(MESSAGE))]


# ---- A13: success


@pytest.mark.parametrize(
    ("frames", "reply"),
    [
        ([Headers(1, REPLY), Data(1, grpc(b"")), END], Reply(True, b"")),
        ([Headers(1, ((b":status", b"103"),)), *ANSWER, END], Reply(True, b"the reply")),
        (
            [Headers(1, (*REPLY, (b"grpc-encoding", b"gzip"))), Data(1, grpc(gzip.compress(b"r"), 1)), END],
            Reply(True, b"r"),
        ),
        ([Headers(1, (*REPLY, *TRAILERS), end=True)], Reply(False)),
        ([Headers(1, (*REPLY, (b"grpc-status", b"5")), end=True)], Reply(False)),
        ([Headers(1, (*REPLY, (b"grpc-status", b"1")), end=True)], UNANSWERED),
        ([Headers(1, (*REPLY, (b"grpc-status", b"4")), end=True)], UNANSWERED),
        ([Headers(1, (*REPLY, (b"grpc-status", b"14")), end=True)], UNANSWERED),
        ([*ANSWER, Headers(1, ((b"grpc-status", b"00"),), end=True)], Reply(False)),
        ([*ANSWER, Headers(1, ((b"x", b"y"),), end=True)], Reply(False)),
        ([*ANSWER, Data(1, b"", end=True)], Reply(False)),
        ([*ANSWER, *ANSWER[1:], END], Reply(False)),
        ([Headers(1, ((b":status", b"503"),)), *ANSWER[1:], END], Reply(False)),
        ([Headers(1, REPLY), Reset(1, 2)], UNANSWERED),
    ],
)
def test_a13_success_is_status_0_and_one_message(frames: list[Frame], reply: Reply) -> None:
    play = released()
    play.runtime.sends(*frames)
    assert play.call.reply == reply
    play.call.answer()
    assert play.client.got() == frames


def test_a13_a_reply_above_the_limit_passes_and_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REPLY_BYTES", 100)
    play = released()
    frames: list[Frame] = [Headers(1, REPLY), Data(1, grpc(bytes(200))), Data(1, bytes(300))]
    play.runtime.sends(*frames, END)
    assert play.client.got() == frames
    assert play.call.reply == Reply(False)
    assert len(play.call._reply_body) == 205


# ---- C1, C2, C5: races


@pytest.mark.parametrize("end", [END, Data(1, b"x", end=True), Reset(1, 2)], ids=repr)
def test_c1_an_end_by_the_runtime_while_held_passes_at_once_and_cancels_the_hooks(end: Frame) -> None:
    play = holding(Data(1, b""))
    seen: list[str] = []
    play.call.on_ended = lambda: seen.append("ended")
    play.call.on_reply = lambda: seen.append("reply")
    play.runtime.sends(Headers(1, REPLY), end)
    assert play.client.got() == [Headers(1, REPLY), end]
    assert (play.call.state, play.call.reply, seen) == (CallState.ENDED, UNANSWERED, ["reply", "ended"])
    assert not play.call.release(b"late")
    assert not play.call.refuse(13, "late")
    play.call.answer()
    assert play.client.got() == play.runtime.got() == []
    play.client.sends(Data(1, b"late"))
    assert play.runtime.got() == [Data(1, b"late")]
    assert play.held_bytes.count == 0


def test_c2_a_cancel_after_the_release_ends_no_hook_and_leaves_the_call_unanswered() -> None:
    play = released()
    play.call.on_ended = lambda: pytest.fail("the task of a released call is not cancelled")
    play.runtime.sends(*ANSWER)
    play.client.sends(Reset(1, 8))
    assert (play.call.state, play.call.reply) == (CallState.RELEASED, UNANSWERED)
    assert play.runtime.got() == [Reset(1, 8)]


def gone(side: str) -> Callable[[Play], object]:
    return lambda play: getattr(play.reader, f"{side}_gone")()


@pytest.mark.parametrize("leave", [gone("client"), gone("runtime")], ids=["client", "runtime"])
def test_c5_the_end_of_a_connection_drops_calls_not_yet_released(leave: Callable[[Play], object]) -> None:
    play = holding()
    ended: list[bool] = []
    play.call.on_ended = lambda: ended.append(True)
    assert not leave(play)
    assert (play.call.state, play.call.reply, ended) == (CallState.ENDED, UNANSWERED, [True])


def test_c5_a_released_call_lives_on_without_its_client_and_not_without_the_runtime() -> None:
    play = released()
    play.reader.client_gone()
    assert play.call.reply is None
    play.reader.runtime_gone()
    assert not play.reader.keeps_answers
    assert play.call.reply == UNANSWERED


def test_c5_an_answer_that_is_kept_outlives_the_runtime() -> None:
    play = released()
    play.runtime.sends(*ANSWER, END)
    play.client.got()
    play.reader.runtime_gone()
    assert play.reader.keeps_answers
    play.call.answer()
    assert play.client.got() == [END]
    assert not play.reader.keeps_answers
