"""The exporter between a fake of the proxy's metrics socket and clients: what passes, what is refused, what ends."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from runtimeproxy import exporter
from runtimeproxy.errors import ConfigError
from runtimeproxy.exporter import CONNECTIONS, HEAD_BYTES, Exporter, Tls, TlsFiles
from runtimeproxy.relay.acceptor import Acceptor
from tests.fakes.server import StreamServer
from tests.patience import SECONDS, until

ROOT = Path(__file__).parents[1]
FIGURES = "runtimeproxy_held_calls 0\n"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def reply(body: str = FIGURES, status: str = "200 OK", kind: str = "text/plain; version=0.0.4") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    return answer


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_in_the_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    await asyncio.Event().wait()


async def break_off(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


class FakeProxy:
    """The proxy's metrics socket; ``heads`` are the requests that came, ``answer`` is what each gets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heads: list[str] = []
        self.answer: Answer = reply()
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            self.tasks.add(task)
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await self.answer(writer)
        finally:
            writer.close()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[FakeProxy]:
    fake = FakeProxy(tmp_path / "metrics.sock")
    async with StreamServer(fake.path, fake.serve):
        yield fake
    for task in fake.tasks:
        task.cancel()
    await asyncio.gather(*fake.tasks, return_exceptions=True)


@asynccontextmanager
async def exporting(endpoint: Path, tls: Tls | None = None) -> AsyncIterator[int]:
    """Run an exporter; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with Exporter(str(endpoint), tls) as running:
            acceptor = Acceptor(asyncio.get_running_loop(), listener, running.accept)
            acceptor.start()
            yield listener.getsockname()[1]
            acceptor.stop()


async def ask(port: int, request: str, context: ssl.SSLContext | None = None) -> str:
    """Return all that comes for a request until the connection ends."""
    async with asyncio.timeout(SECONDS):
        name = "node.test" if context else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(f"{request}\r\nHost: node\r\nAuthorization: secret\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        return answer


PASSED = [
    ("GET /metrics HTTP/1.1", "/metrics", reply(), "200 OK"),
    ("GET /livez HTTP/1.1", "/livez", reply("ok\n"), "200 OK"),
    ("GET /readyz?verbose HTTP/1.1", "/readyz?verbose", reply("[-]runtime failed\n", "503 no"), "503 Service"),
    ("GET /readyz?verbose=1&secret=2 HTTP/1.0", "/readyz?verbose", reply("ok\n"), "200 OK"),
]


@pytest.mark.parametrize(("request_line", "target", "answer", "status"), PASSED, ids=[row[0] for row in PASSED])
async def test_three_paths_pass_without_what_the_client_adds(
    proxy: FakeProxy, request_line: str, target: str, answer: Answer, status: str
) -> None:
    proxy.answer = answer
    async with exporting(proxy.path) as port:
        answered = await ask(port, request_line)
    (head,) = proxy.heads
    assert head.startswith(f"GET {target} HTTP/1.1\r\n")
    assert "secret" not in head.lower()
    assert answered.partition(" ")[2].startswith(status)
    assert "Content-Type: text/plain; version=0.0.4\r\n" in answered
    assert "Connection: close\r\n" in answered or "HTTP/1.0" in answered


REFUSED = [
    ("GET / HTTP/1.1", "404"),
    ("GET /hooks HTTP/1.1", "404"),
    ("GET /metrics/ HTTP/1.1", "404"),
    ("GET //metrics HTTP/1.1", "404"),
    ("POST /loglevel HTTP/1.1", "404"),
    ("POST /metrics HTTP/1.1", "405"),
    ("HEAD /readyz HTTP/1.1", "405"),
    ("nonsense", "400"),
]


@pytest.mark.parametrize(("request_line", "status"), REFUSED, ids=[row[0] for row in REFUSED])
async def test_all_else_ends_here(proxy: FakeProxy, request_line: str, status: str) -> None:
    async with exporting(proxy.path) as port:
        answered = await ask(port, request_line)
    assert answered.split()[1] == status
    assert ("Allow: GET\r\n" in answered) == (status == "405")
    assert not proxy.heads


FAULTS = [
    ("502", break_off, "it broke off"),
    ("502", reply("x" * (exporter.ANSWER_BYTES + 1)), "its answer is longer than 4194304 bytes"),
    ("504", hang, "it did not answer within"),
    ("504", hang_in_the_answer, "it did not answer within"),
]


@pytest.mark.parametrize(("status", "answer", "why"), FAULTS, ids=["breaks off", "too long", "hangs", "hangs half-way"])
async def test_fault_of_the_proxy_is_one_line(
    proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch, status: str, answer: Answer, why: str
) -> None:
    if status == "504":
        monkeypatch.setattr(exporter, "UPSTREAM_SECONDS", 0.05)
    proxy.answer = answer
    async with exporting(proxy.path) as port:
        answered = await ask(port, "GET /metrics HTTP/1.1")
        proxy.answer = reply()
        assert FIGURES in await ask(port, "GET /metrics HTTP/1.1")
    assert answered.split()[1] == status
    (line,) = answered.partition("\r\n\r\n")[2].splitlines()
    assert line.startswith(f"the proxy at {proxy.path}: {why}")


@pytest.mark.parametrize("left", [False, True], ids=["no socket", "a socket that nobody listens on"])
async def test_socket_that_is_not_there_is_told(tmp_path: Path, left: bool) -> None:
    path = tmp_path / "metrics.sock"
    if left:
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(path))
    async with exporting(path) as port:
        answered = await ask(port, "GET /metrics HTTP/1.1")
    assert answered.startswith("HTTP/1.1 502 ")
    assert "--metrics-endpoint" in answered


async def test_faults_are_logged_once(proxy: FakeProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "runtimeproxy.exporter")
    proxy.answer = break_off
    async with exporting(proxy.path) as port:
        for _ in range(3):
            await ask(port, "GET /metrics HTTP/1.1")
        proxy.answer = reply()
        for _ in range(2):
            await ask(port, "GET /metrics HTTP/1.1")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_head_without_end_ends_the_connection(proxy: FakeProxy) -> None:
    async with exporting(proxy.path) as port, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * HEAD_BYTES)
        with suppress(ConnectionError):  # what was sent beyond is unread
            assert not await reader.read()
        writer.close()


@pytest.mark.parametrize("sent", [b"GET /metrics", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["head", "answer"])
async def test_client_that_stops_is_given_up(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """One says half of a head, the other reads nothing of an answer that is longer than all buffers."""
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)
    proxy.answer = reply("x" * exporter.ANSWER_BYTES)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        async with Exporter(str(proxy.path)) as running:
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            running.accept(accepted)
            await loop.sock_sendall(client, sent)
            await until(lambda: len(proxy.heads) == sent.count(b"Host"))
            assert running.clients
            await until(lambda: not running.clients)


async def test_client_accepted_at_the_end_is_closed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with Exporter(str(tmp_path / "metrics.sock"), None) as running:
            running.accept(ours)
        await asyncio.sleep(0)
        assert ours.fileno() == -1


async def test_one_connection_too_many_is_closed(proxy: FakeProxy) -> None:
    async with exporting(proxy.path) as port, asyncio.timeout(SECONDS):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert not await reader.read()
        writer.close()
        for _, writer in held:
            writer.close()


class Authority:
    """Certificates of a test, in files."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.files = TlsFiles(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")))
        self._ca.cert_pem.write_to_path(self.files.client_ca)
        self.renew()

    def renew(self) -> bytes:
        """Write another certificate for the server, with its key; return its serial number in DER form."""
        issued = self._ca.issue_cert("node.test")
        issued.private_key_pem.write_to_path(self.files.key)
        Path(self.files.cert).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    def client(self, certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files.client_ca)
        if certificate:
            self._ca.issue_cert("prometheus.test").configure_cert(context)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_client_with_a_certificate_is_served(proxy: FakeProxy, authority: Authority) -> None:
    async with exporting(proxy.path, Tls(authority.files)) as port:
        assert FIGURES in await ask(port, "GET /metrics HTTP/1.1", authority.client())


def too_old(authority: Authority) -> ssl.SSLContext:
    context = authority.client()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


STRANGERS: dict[str, Callable[[Authority, Path], ssl.SSLContext | None]] = {
    "no TLS": lambda authority, folder: None,
    "no certificate": lambda authority, folder: authority.client(certificate=False),
    "TLS 1.1": lambda authority, folder: too_old(authority),
}


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_other_clients_get_nothing(proxy: FakeProxy, authority: Authority, tmp_path: Path, stranger: str) -> None:
    async with exporting(proxy.path, Tls(authority.files)) as port:
        try:
            answered = await ask(port, "GET /metrics HTTP/1.1", STRANGERS[stranger](authority, tmp_path))
        except OSError:
            answered = ""
        assert FIGURES in await ask(port, "GET /metrics HTTP/1.1", authority.client())
    assert not answered
    assert len(proxy.heads) == 1


async def served_certificate(port: int, context: ssl.SSLContext) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="node.test")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


async def test_renewed_certificates_are_served(proxy: FakeProxy, authority: Authority) -> None:
    async with exporting(proxy.path, Tls(authority.files)) as port:
        before = await served_certificate(port, authority.client())
        key = Path(authority.files.key).read_bytes()
        Path(authority.files.key).write_bytes(b"half of it")
        assert await served_certificate(port, authority.client()) == before
        Path(authority.files.key).write_bytes(key)
        renewed = authority.renew()
        assert renewed != before
        assert await served_certificate(port, authority.client()) == renewed


BROKEN = [
    ("cert", None, "--tls-cert: {path} cannot be read (No such file or directory)"),
    ("key", b"", "--tls-key {path} cannot be used together ("),
    ("cert", b"nonsense", "--tls-cert {path} and --tls-key"),
    ("client_ca", b"", "--client-ca: {path} cannot be used ("),
]


@pytest.mark.parametrize(("name", "content", "words"), BROKEN)
def test_tls_files_that_cannot_be_used_are_told(
    authority: Authority, name: str, content: bytes | None, words: str
) -> None:
    path = Path(getattr(authority.files, name))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Tls(authority.files)
    assert words.format(path=path) in str(raised.value)


ADDRESSES = {
    "127.0.0.1:9654": ("127.0.0.1", 9654),
    "[::1]:9654": ("::1", 9654),
    "0.0.0.0:0": ("0.0.0.0", 0),
    "localhost:9654": None,
    "::1:9654": None,
    "[127.0.0.1]:9654": None,
    "127.0.0.1": None,
    "127.0.0.1:": None,
    "127.0.0.1:65536": None,
    ":9654": None,
    "": None,
}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.items())
def test_listen_is_an_address_with_a_port(text: str, expected: tuple[str, int] | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match=r"^--listen: .* is not an address with a port"):
            exporter.address(text)
    else:
        assert exporter.address(text) == expected


TLS_FLAGS = [
    ("127.0.0.1", (None, None, None), ""),
    ("::1", (None, None, None), ""),
    ("10.0.0.1", ("c", "k", "a"), ""),
    ("127.0.0.1", ("c", "k", "a"), ""),
    ("10.0.0.1", (None, None, None), "--listen: 10.0.0.1 is not a loopback address"),
    ("::", (None, None, None), "--listen: :: is not a loopback address"),
    ("127.0.0.1", ("c", None, None), "TLS needs all of .*: --tls-key and --client-ca is missing"),
    ("10.0.0.1", ("c", "k", ""), "TLS needs all of .*: --client-ca is missing"),
]


@pytest.mark.parametrize(("host", "files", "error"), TLS_FLAGS)
def test_an_address_that_is_not_loopback_needs_tls(host: str, files: tuple[str | None, ...], error: str) -> None:
    if error:
        with pytest.raises(ConfigError, match=error):
            exporter.tls_files(host, *files)
    else:
        assert exporter.tls_files(host, *files) == (TlsFiles(*map(str, files)) if files[0] else None)


@pytest.mark.slow
async def test_program_serves_until_it_is_asked_to_end(proxy: FakeProxy) -> None:
    program = [sys.executable, "-m", "runtimeproxy", "export", f"--metrics-endpoint={proxy.path}"]
    process = await asyncio.create_subprocess_exec(
        *program, "--listen=[::1]:0", cwd=ROOT, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert process.stderr is not None
    async with asyncio.timeout(SECONDS):
        line = (await process.stderr.readline()).decode()
        port = int(line.partition("listening on http://[::1]:")[2].split()[0])
        reader, writer = await asyncio.open_connection("::1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert FIGURES.encode() in await reader.read()
        writer.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert b"Traceback" not in await process.stderr.read()


GROUP = 54321
AS_NOBODY = """
import os, sys
from runtimeproxy import cli, exporter
from runtimeproxy.cli.commands import export
os.setgroups([int(group) for group in sys.argv.pop(1).split(",") if group])
os.setgid(65534)
os.setuid(65534)
sys.exit(cli.main())
"""
"""The program as nobody, in the groups of its first argument; what it needs is imported before."""


@pytest.mark.engine
@pytest.mark.parametrize(("groups", "status"), [(str(GROUP), "200"), ("", "502")], ids=["in the group", "not in it"])
async def test_nobody_is_served_by_the_group_of_the_socket(groups: str, status: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed for others
        folder = Path(name)
        folder.chmod(0o755)
        fake = FakeProxy(folder / "metrics.sock")
        server = await asyncio.start_unix_server(fake.serve, fake.path)
        os.chown(fake.path, 0, GROUP)
        fake.path.chmod(0o660)
        flags = ["export", f"--metrics-endpoint={fake.path}", "--listen=127.0.0.1:0"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AS_NOBODY, groups, *flags, cwd=ROOT, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        port = int(line.partition("listening on http://127.0.0.1:")[2].split()[0])
        answered = await ask(port, "GET /metrics HTTP/1.1")
        process.terminate()
        assert (await process.communicate())[1].decode().count("\n") == (status == "502")
        server.close()
    assert answered.split()[1] == status
    assert ("Permission denied" in answered) == (status == "502")
