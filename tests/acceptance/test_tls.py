"""TLS on the server's own port: streams, renewal, and clients that never finish their handshake."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import httpx2
import pytest
from openai import OpenAI

from server.http.asgi.tls import ServerCertificate
from tests.fix_server import SCRIPTED
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command

LIMIT = 8
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@dataclass(frozen=True)
class Secured:
    server: ServerProcess
    authority: Authority

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", verify=self.authority.context(), timeout=10)


@pytest.fixture
def secured(database_url: str, tmp_path: Path) -> Iterator[Secured]:
    authority = Authority()
    files = {"tls_certificate": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"}
    authority.write(*files.values())
    settings = {**SCRIPTED, **files, "max_connections": LIMIT}
    server = ServerProcess(database_url, settings=settings)
    secured = Secured(server, authority)
    server.launch()
    eventually(lambda: "Ready:" in server.said() and secured.get("/health/ready").status_code == 200)
    yield secured
    server.stop()


def test_the_official_client_streams_over_tls(secured: Secured) -> None:
    with httpx2.Client(verify=secured.authority.context()) as http:
        client = OpenAI(base_url=f"{secured.url}/v1", api_key="none", http_client=http, max_retries=0)
        with client.responses.create(model=MODEL, input="Hello", stream=True) as stream:
            assert [event.type for event in stream][-1] == "response.completed"


def test_websockets_speak_tls(secured: Secured) -> None:
    plain = socket.create_connection(("127.0.0.1", secured.server.port), timeout=10)
    with secured.authority.context().wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(UPGRADE % secured.server.port)
        assert connection.recv(65536).startswith(b"HTTP/1.1 101")


def test_what_is_printed_at_the_start_names_https(secured: Secured) -> None:
    assert f"https://127.0.0.1:{secured.server.port}/v1" in secured.server.said()


def test_a_client_without_tls_is_disconnected_and_others_are_served(secured: Secured) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{secured.server.port}/health/live", timeout=5)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{secured.url}/health/live", verify=old, timeout=5)
    assert secured.get("/health/live").status_code == 200
    assert "Traceback" not in secured.server.said()


def test_clients_that_never_shake_hands_keep_nobody_out(secured: Secured) -> None:
    with ExitStack() as stack:
        for _ in range(10 * LIMIT):
            stack.enter_context(socket.create_connection(("127.0.0.1", secured.server.port)))
        assert secured.get("/health/live").status_code == 200
        assert secured.get("/v1/models").status_code == 200


@pytest.mark.parametrize("broken", [False, True], ids=["a pair", "not a pair"])
def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path, broken: bool) -> None:
    authority = Authority()
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    first = authority.write(certificate, key)
    served = ServerCertificate(certificate, key, checked_s=0.0)
    assert _serial(served, authority) == first
    second = authority.write(certificate, tmp_path / "other.key" if broken else key)
    os.utime(certificate, ns=(1, 1))
    assert _serial(served, authority) == (first if broken else second)


def test_a_pair_that_is_none_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    certificate, key, other = (tmp_path / name for name in ("a.pem", "a.key", "b.key"))
    Authority().write(tmp_path / "b.pem", other)
    Authority().write(certificate, key)
    locked = tmp_path / "locked.key"
    Authority().write(tmp_path / "locked.pem", locked, password=b"secret")
    for pair in ((certificate, other), (certificate, tmp_path / "none"), (tmp_path / "locked.pem", locked)):
        started = run_command("serve", tls_certificate=pair[0], tls_key=pair[1], engine="scripted")
        assert started.returncode == 1
        assert "cannot be used" in started.stderr
        assert "Traceback" not in started.stderr
    alone = run_command("serve", tls_certificate=certificate)
    assert (alone.returncode, "belong together" in alone.stderr) == (1, True)


def _serial(served: ServerCertificate, authority: Authority) -> int:
    """The serial number of the certificate that a client is shown."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accepting = threading.Thread(
            target=lambda: served.context().wrap_socket(ours, server_side=True).close()
        )
        accepting.start()
        with authority.context().wrap_socket(theirs, server_hostname="localhost") as shown:
            found = shown.getpeercert()
        accepting.join()
    assert found is not None
    return int(str(found["serialNumber"]), 16)
