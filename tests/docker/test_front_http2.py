"""Clients that speak HTTP/2 to dockerd go round the hook servers, where no plugin has policy Fail (relay-rules B4)."""

import socket
from pathlib import Path

import pytest

from runtimeproxy.docker.requests import PREFACE
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.daemon import until
from tests.docker.node import Node
from tests.fakes.plugins import FAIL, IGNORE


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_a_client_that_speaks_http2_goes_round_the_hooks_or_away(tmp_path: Path, policy: FailurePolicy) -> None:
    async with Node(tmp_path) as node:
        node.plugins.add("a", policy=policy, points=("PostStopPodSandbox",))
        client = await node.client()
        client.send(PREFACE + b"SM\r\n\r\n")
        answer = await client.ended()  # the fake daemon speaks no HTTP/2
        assert (answer == b"") is (policy is FAIL)
        assert node.recorder.total("http2_tunnels") == 1


async def test_a_client_that_went_round_the_hooks_is_closed_when_a_plugin_with_policy_fail_comes(
    tmp_path: Path,
) -> None:
    async with Node(tmp_path, away=True) as node:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(node.dockerd.socket_path)
            daemon.listen()  # it says nothing to anybody, as a daemon that speaks HTTP/2 would not either
            http2, http1 = await node.client(), await node.client()
            http2.send(PREFACE + b"SM\r\n\r\n")
            http1.send(b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n")
            await until(lambda: len(node.front.http2) == 1)
            node.plugins.add("a", policy=IGNORE)
            node.plugins.changed()
            assert len(node.front.http2) == 1
            node.plugins.add("b", policy=FAIL)
            node.plugins.changed()
            assert await http2.ended() == b""
            await until(lambda: len(node.front.connections) == 1)
            assert not node.front.http2
