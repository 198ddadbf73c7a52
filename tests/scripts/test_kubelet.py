"""A kubelet's calls and the peers that answer them: whole answers, what Go's libraries send beside them, counts."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.wire import http2
from scripts.benchmark import node, peers, programs
from scripts.benchmark.cases import (
    CASES,
    CREATE,
    CRI,
    DIRECT,
    DOCKER,
    DOCKER_CREATE,
    DOCKER_LISTED,
    DOCKER_POD,
    LISTED,
    RUN,
    START,
)
from scripts.benchmark.goends import GrpcEnd, read_message
from scripts.benchmark.kubelet import CriClient, DockerClient, Kubelet
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from tests.fakes import cri_pb2

ALONE = [case for case in CASES if case.pause is not None]
FIELDS = ((":status", "200"), ("content-type", "application/grpc"))


@contextmanager
def serving(mode: str) -> Iterator[Served]:
    with programs.served(MODES[mode], [DIRECT], peers=True) as served:
        yield served


@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_every_call_of_a_kubelet_is_answered(mode: str) -> None:
    with serving(mode) as served:
        for case in ALONE:
            if case.mode == mode:
                run = MODES[mode].prepare(served, case, DIRECT).run(3)
                assert len(run.microseconds) == 3
                assert run.seconds >= sum(run.microseconds) / 1e6 + 3 * (case.pause or 0.0)
                assert served.made[DIRECT, case.route] >= 3


def test_what_a_call_is_about_is_counted_with_it() -> None:
    with serving(CRI) as served:
        Kubelet(served, START, DIRECT).run(2)
        assert served.made == {(DIRECT, RUN.route): 1, (DIRECT, CREATE.route): 1, (DIRECT, START.route): 2}
    with serving(DOCKER) as served:
        Kubelet(served, DOCKER_CREATE, DIRECT).run(2)
        assert served.made == {(DIRECT, DOCKER_POD): 1, (DIRECT, DOCKER_CREATE.route): 2}


def test_answers_are_whole_and_ids_are_new() -> None:
    with serving(CRI) as served, closing(CriClient(served.socket(DIRECT))) as client:
        assert client.call(LISTED.route, cri_pb2.ListContainersRequest()) == node.CONTAINERS
        run = cri_pb2.RunPodSandboxRequest(config=node.POD)
        ids = {client.call(RUN.route, run).pod_sandbox_id for _ in range(3)}
        assert len(ids) == 3
        assert not {pod.id for pod in node.PODS.items} & ids
        with pytest.raises(DemoError, match="'grpc-status': '12'"):
            client.call("Attach", cri_pb2.AttachRequest())
    with serving(DOCKER) as served, closing(DockerClient(served.socket(DIRECT))) as docker:
        assert docker.call(DOCKER_LISTED.route, "/containers/json") == node.DOCKER_CONTAINERS
        with pytest.raises(DemoError, match=r"GET /nothing failed: HTTP/1\.1 404"):
            docker.call("GET /nothing", "/nothing")


def test_the_hook_server_changes_containers() -> None:
    answer = api_pb2.ContainerResourceHookResponse.FromString(peers._hook("PreCreateContainerHook", b""))
    assert answer.container_resources.cpuset_cpus == "0"
    assert answer.container_envs == {"HOOKED": "1"}
    assert peers._hook("PreRunPodSandboxHook", b"") == b""


def test_data_is_answered_with_credit_and_one_ping_at_a_time() -> None:
    end, peer = GrpcEnd(), GrpcEnd()
    first, second = (end.beside(http2.DATA, 0, b"12345") for _ in range(2))
    assert [kind for kind, *_ in peer.frames(first)] == [http2.WINDOW_UPDATE, http2.PING]
    assert second == http2.window_update(0, 5)
    [(kind, flags, _, payload)] = peer.frames(peer.beside(http2.PING, 0, b"12345678"))
    assert (kind, flags, payload) == (http2.PING, http2.ACK, b"12345678")
    assert end.beside(kind, flags, payload) == b""
    assert end.beside(http2.DATA, 0, b"12345") == first


def test_header_blocks_are_read_whatever_was_remembered() -> None:
    end, peer = GrpcEnd(), GrpcEnd()
    more = (*FIELDS, ("grpc-status", "0"))
    for fields in (FIELDS, FIELDS, more, FIELDS, more, more):
        assert peer.decode(http2.END_HEADERS, end.encode(fields)) == dict(fields)
    assert len(end.encode(FIELDS)) == 2  # both are in the table


@pytest.mark.parametrize(
    ("message", "ended"),
    [
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 204 No Content\r\nA: b\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", True),
    ],
)
def test_the_end_of_an_http_message_is_known(message: bytes, ended: bool) -> None:
    assert (read_message(message) is not None) is ended
