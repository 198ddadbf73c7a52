"""Where the exporter listens: addresses, TLS, unix sockets, and the program."""

import asyncio
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from runtimeproxy.admin import exporter
from runtimeproxy.admin.exporter import Place, Tls, TlsFiles
from runtimeproxy.errors import ConfigError
from tests.admin.conftest import FIGURES, GET_METRICS, connected, exporting, fetch, reply
from tests.docs import ROOT
from tests.fakes.canned_admin import Server
from tests.patience import SECONDS


class Authority:
    """A certificate authority, with its files."""

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


def too_old(authority: Authority) -> ssl.SSLContext:
    context = authority.client()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


STRANGERS: dict[str, Callable[[Authority], ssl.SSLContext | None]] = {
    "no TLS": lambda authority: None,
    "no certificate": lambda authority: authority.client(certificate=False),
    "TLS 1.1": too_old,
}


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_client_without_certificate_gets_nothing(upstream: Server, authority: Authority, stranger: str) -> None:
    async with exporting(upstream.server_address, Tls(authority.files)) as port:
        answered = ""
        with suppress(OSError):
            answered = await fetch(port, GET_METRICS, STRANGERS[stranger](authority))
        assert FIGURES in await fetch(port, GET_METRICS, authority.client())
    assert not answered
    assert len(upstream.requests) == 1


async def served_certificate(port: int, context: ssl.SSLContext) -> bytes:
    async with connected(port, "", context) as (_, writer):
        return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))


async def test_renewed_certificates_are_served(upstream: Server, authority: Authority) -> None:
    async with exporting(upstream.server_address, Tls(authority.files)) as port:
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
def test_tls_files_that_cannot_be_used_are_reported(
    authority: Authority, name: str, content: bytes | None, words: str
) -> None:
    path = Path(getattr(authority.files, name))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Tls(authority.files)
    assert words.format(path=path) in str(raised.value)


ADDRESSES: dict[str, Place | None] = {
    "127.0.0.1:9654": ("127.0.0.1", 9654),
    "[::1]:9654": ("::1", 9654),
    "unix:///run/x.sock": "/run/x.sock",
    **dict.fromkeys(["unix:x.sock", "/run/x.sock", "localhost:9654", "::1:9654", "[127.0.0.1]:9654"]),
    **dict.fromkeys(["127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", ":9654", ""]),
}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.items())
def test_listen_is_an_address_with_a_port_or_a_path(text: str, expected: Place | None) -> None:
    if expected:
        assert exporter.place(text) == expected
        return
    with pytest.raises(ConfigError, match=r"^--listen: .* is not an? (address with a port|unix socket)"):
        exporter.place(text)


LOOPBACK, REMOTE, NONE, ALL = ("127.0.0.1", 1), ("10.0.0.1", 1), (None, None, None), ("c", "k", "a")
STATE = "--listen: any user of the node could read the proxy's state there"
TLS_FLAGS: list[tuple[Place, tuple[str | None, ...], bool, str]] = [
    (LOOPBACK, NONE, False, ""),
    (REMOTE, ALL, False, ""),
    (REMOTE, NONE, False, "--listen: 10.0.0.1 is not a loopback address"),
    (("::", 1), NONE, False, "--listen: :: is not a loopback address"),
    (LOOPBACK, ("c", None, None), False, "TLS needs all of .*: --tls-key and --client-ca is missing"),
    (LOOPBACK, NONE, True, STATE),
    (LOOPBACK, ("c", "k", None), True, "TLS needs all of .*: --client-ca is missing"),
    (LOOPBACK, ALL, True, ""),
    ("/x.sock", NONE, True, ""),
    ("/x.sock", ("c", None, None), True, "--listen: a unix socket has no TLS"),
]


@pytest.mark.parametrize(("at", "files", "everything", "error"), TLS_FLAGS)
def test_tls_is_needed_where_users_may_connect(
    at: Place, files: tuple[str | None, ...], everything: bool, error: str
) -> None:
    if error:
        with pytest.raises(ConfigError, match=error):
            exporter.tls_files(at, *files, everything=everything)
    else:
        expected = TlsFiles(*map(str, files)) if files[0] else None
        assert exporter.tls_files(at, *files, everything=everything) == expected


@pytest.mark.slow
async def test_program_serves_everything_on_a_unix_socket(upstream: Server, tmp_path: Path) -> None:
    upstream.fault = reply({"hooks": []})
    path = tmp_path / "http" / "x.sock"
    flags = [f"--admin-endpoint={upstream.server_address!s}", f"--listen=unix:{path}"]
    command = [sys.executable, "-m", "runtimeproxy", "export", *flags]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    async with asyncio.timeout(SECONDS):
        assert f"listening on unix:{path}".encode() in await process.stderr.readline()
        assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /hooks HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b'{"hooks":[],"schemaVersion":1}\n' in await reader.read()
        writer.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert b"Traceback" not in await process.stderr.read()
    assert not path.exists()
