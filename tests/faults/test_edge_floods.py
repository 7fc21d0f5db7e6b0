"""F32 to F34: a tenant that takes all it may, descriptors that run out, and clients without a key."""

import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event
from time import monotonic

import httpx
import pytest

from tests.fix_server import SCRIPTED, StartServer, StartServerOn
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.raw_client import resident_bytes
from tests.support.server_process import MODEL, PATIENCE_S, ServerProcess, free_port, run_command
from tests.support.websocket import Refused, WebSocket

MIB = 1024 * 1024
HELLO = {"model": MODEL, "input": "Hello", "max_output_tokens": 3}
PROBES = 100
SLACK_S = 0.5
"""What a machine that does other things too may add to a p99."""
FILES = 300
FLOOD = 384
STRANGERS = 40
MOST_GROWTH = 100 * MIB


def response_hex_of(tenant: str, database_url: str) -> str:
    made = run_command("keys", "create", "--tenant", tenant, database_url=database_url)
    return made.stdout.split()[-1]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Probe:
    """A tenant's small requests to one server, none of which may be refused."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self._client = httpx.Client(base_url=server.api, headers=bearer(key), timeout=PATIENCE_S)
        self._made = self._client.post("/responses", json=HELLO).raise_for_status().json()["id"]
        self._times: list[float] = []

    def close(self) -> None:
        self._client.close()

    def send(self) -> None:
        number = len(self._times)
        began = monotonic()
        if number % 3 == 0:
            answer = self._client.post("/responses", json=HELLO)
        else:
            answer = self._client.get(f"/responses/{self._made}" if number % 3 == 1 else "/models")
        self._times.append(monotonic() - began)
        assert answer.status_code == 200, answer.text

    @property
    def p99(self) -> float:
        """What 99 of 100 of them kept to, in seconds."""
        return sorted(self._times)[-(-len(self._times) * 99 // 100) - 1]


Flood = Callable[[ServerProcess, str, Event, ExitStack], None]
"""Begins a flood of a tenant's that lasts until the event is set or the stack is closed."""


def send_until(over: Event, send: Callable[[httpx.Client], object], server: ServerProcess, key: str) -> None:
    with httpx.Client(base_url=server.api, headers=bearer(key), timeout=PATIENCE_S) as client:
        while not over.is_set():
            send(client)


def crowd(
    server: ServerProcess, key: str, over: Event, stack: ExitStack, send: Callable[[httpx.Client], object]
) -> None:
    pool = stack.enter_context(ThreadPoolExecutor(24))
    stack.callback(over.set)
    for _ in range(24):
        pool.submit(send_until, over, send, server, key)


def handlers(server: ServerProcess, key: str, over: Event, stack: ExitStack) -> None:
    """Pages of lists, which are among the slower requests."""
    crowd(server, key, over, stack, lambda client: client.get("/responses?limit=100"))


def bodies(server: ServerProcess, key: str, over: Event, stack: ExitStack) -> None:
    content = b'{"model": "' + b"a" * (4 * MIB) + b'"}'
    crowd(server, key, over, stack, lambda client: client.post("/responses", content=content))


def raw(server: ServerProcess, stack: ExitStack, head: bytes) -> socket.socket:
    client = stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)))
    client.sendall(head)
    return client


def connections_that_idle(server: ServerProcess, key: str, _over: Event, stack: ExitStack) -> None:
    for _ in range(400):
        raw(server, stack, f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n".encode())


def streams(server: ServerProcess, key: str, _over: Event, stack: ExitStack) -> None:
    """More than the tenant may have, of one response that does not end."""
    long = {**HELLO, "background": True, "max_output_tokens": 5000}
    made = httpx.post(f"{server.api}/responses", json=long, headers=bearer(key), timeout=PATIENCE_S)
    name = made.raise_for_status().json()["id"]
    head = f"GET /v1/responses/{name}?stream=true HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n"
    opened = [raw(server, stack, head.encode()) for _ in range(150)]
    answers = [client.recv(12) for client in opened]
    assert {answer[9:12] for answer in answers} == {b"200", b"429"}


def sockets(server: ServerProcess, key: str, _over: Event, stack: ExitStack) -> None:
    refused = set()
    for _ in range(60):
        try:
            stack.enter_context(WebSocket(server.url, headers=bearer(key)))
        except Refused as error:
            refused.add(error.status)
    assert refused == {429}


@pytest.mark.faults
@pytest.mark.parametrize("flood", [handlers, bodies, streams, sockets, connections_that_idle])
def test_a_tenant_that_takes_all_it_may_costs_another_one_nothing(
    database_url: str,
    other_database_url: str,
    start_server_on: StartServerOn,
    flood: Flood,
    tally: Tally,
) -> None:
    """Alone is a second server, by turns with the first: of the same settings, at the same time and on the
    same machine, with a database of its own and nobody else's requests.
    """
    loud, quiet = response_hex_of("loud", database_url), response_hex_of("quiet", database_url)
    alone_key = response_hex_of("quiet", other_database_url)
    server, calm = (
        start_server_on(
            url,
            max_connections=200,
            lease_seconds=10,
            body_memory=32 * MIB,
            max_body_bytes=8 * MIB,
            scripted_tokens=5000,
            scripted_step_seconds=0.05,
        )
        for url in (database_url, other_database_url)
    )
    with closing(Probe(server, quiet)) as beside_probe, closing(Probe(calm, alone_key)) as alone_probe:
        with ExitStack() as stack:
            flood(server, loud, Event(), stack)
            for _ in range(PROBES):
                alone_probe.send()
                beside_probe.send()
            for _ in range(10):
                assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE_S).status_code == 200
        alone, beside = alone_probe.p99, beside_probe.p99
    assert beside <= 2 * alone + SLACK_S
    assert "Traceback" not in server.said()
    tally["F32", f"hundredths of the quiet tenant's p99 beside a flood of {flood.__name__}"] += round(
        100 * beside / alone
    )


@contextmanager
def few_files(database_url: str) -> Iterator[ServerProcess]:
    """A server that may open so many files."""
    server = ServerProcess(database_url, settings={**SCRIPTED, "lease_seconds": 10})
    try:
        server.launch()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        eventually(lambda: "Ready:" in server.said(), within=PATIENCE_S)
        yield server
    finally:
        server.stop()


@pytest.mark.faults
def test_connections_without_end_leave_room_for_others(database_url: str, tally: Tally) -> None:
    with few_files(database_url) as server, ExitStack() as stack:
        for _ in range(FLOOD):
            raw(server, stack, b"GET /v1/models HTTP/1.1\r\n")
        for path in ("/health/live", "/health/ready", "/v1/models"):
            assert httpx.get(server.url + path, timeout=PATIENCE_S).status_code == 200
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < FILES - 20
        assert len(server.said()) < MIB
        tally["F33", "idle connections where 300 files may be open"] += FLOOD
        tally["F33", "bytes of log meanwhile"] += len(server.said())


@pytest.mark.faults
def test_file_descriptors_that_run_out_for_another_reason_are_logged_once_a_minute(
    start_server: StartServer, tally: Tally
) -> None:
    server = start_server(lease_seconds=10)
    with ExitStack() as stack:
        raw(server, stack, b"")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (48, 20000))
        for _ in range(FLOOD):
            raw(server, stack, b"GET /v1/models HTTP/1.1\r\n")
        eventually(lambda: "no connection can be accepted" in server.said())
        Event().wait(3)
        assert server.said().count("no connection can be accepted") == 1
        assert len(server.said()) < MIB
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (20000, 20000))
    assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE_S).status_code == 200
    tally["F33", "bytes of log while nothing can be accepted"] += len(server.said())


@pytest.mark.faults
def test_bodies_of_those_without_a_key_take_no_memory(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    response_hex_of("acme", database_url)
    server = start_server(lease_seconds=10)
    httpx.post(f"{server.api}/responses", json=HELLO, timeout=PATIENCE_S)
    before = resident_bytes(server)
    head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {10 * MIB}\r\n\r\n".encode()
    most = before
    with ExitStack() as stack, ThreadPoolExecutor(STRANGERS) as pool:
        clients = [raw(server, stack, head) for _ in range(STRANGERS)]
        sent = [pool.submit(send_all_but_one, client, 10 * MIB) for client in clients]
        while not all(one.done() for one in sent):
            most = max(most, resident_bytes(server))
        assert sum(one.result().startswith(b"HTTP/1.1 401") for one in sent) >= STRANGERS // 2
    assert most - before < MOST_GROWTH
    assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE_S).status_code == 200
    tally["F34", "connections without a key, 10 MB each"] += STRANGERS
    tally["F34", "MiB that they take"] += (most - before) // MIB


def send_all_but_one(client: socket.socket, size: int) -> bytes:
    """Sends a body that lacks its last byte; what the server said, as far as it can be heard."""
    try:
        client.sendall(bytes(size - 1))
        return client.recv(1024)
    except OSError:
        return b"HTTP/1.1 401 unheard"


CLIENTS = 4096
DELAY_S = 0.25
"""What clients without a key may add to a request."""
KINDS = ["readers", "trickles", "forms", "chunks", "bodies", "expecting", "heads", "scrapes", "upgrades"]
KINDS += ["h2c", "pipelines", "silent", "visits"]
BESIDE = 20
"""Requests of each kind while they are there."""


@contextmanager
def without_key(kind: str, port: int) -> Iterator[None]:
    """So many clients without a key, each of which comes again when it is closed."""
    command = [sys.executable, "-m", "tests.support.flood", kind, str(port), str(CLIENTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "all are open\n"
        yield
        flood.communicate("")


def p95(times: list[float]) -> float:
    return sorted(times)[len(times) * 19 // 20 - 1]


class Asked:
    """Times of requests to one server, each on a new connection but where it is said to be kept."""

    def __init__(self, server: ServerProcess, metrics: int, key: str) -> None:
        self.times: dict[str, list[float]] = {}
        self._kept = httpx.Client(headers=bearer(key), timeout=PATIENCE_S)
        self._kept.get(f"{server.api}/models")
        new = partial(httpx.get, timeout=PATIENCE_S)
        self._requests: dict[str, Callable[[], httpx.Response]] = {
            "health": partial(new, f"{server.url}/health/live"),
            "with a key": partial(new, f"{server.api}/models", headers=bearer(key)),
            "with a key, kept": partial(self._kept.get, f"{server.api}/models"),
            "a scrape": partial(new, f"http://127.0.0.1:{metrics}/metrics"),
        }

    def ask(self) -> None:
        for name, request in self._requests.items():
            began = monotonic()
            assert request().status_code == 200
            self.times.setdefault(name, []).append(monotonic() - began)

    def close(self) -> None:
        self._kept.close()


@pytest.mark.faults
@pytest.mark.parametrize("limit", [CLIENTS, CLIENTS // 4], ids=["all have room", "renewed"])
@pytest.mark.parametrize("kind", KINDS)
def test_clients_without_a_key_delay_nobody(
    database_url: str,
    other_database_url: str,
    start_server_on: StartServerOn,
    kind: str,
    limit: int,
    tally: Tally,
) -> None:
    """The second server is of the same settings and on the same machine, and has none of them."""
    metrics = free_port(), free_port()
    keys = [response_hex_of("acme", url) for url in (database_url, other_database_url)]
    server, calm = (
        start_server_on(url, lease_seconds=30, metrics_port=port, max_connections=limit)
        for url, port in zip((database_url, other_database_url), metrics, strict=True)
    )
    with (
        closing(Asked(server, metrics[0], keys[0])) as beside,
        closing(Asked(calm, metrics[1], keys[1])) as alone,
        without_key(kind, metrics[0] if kind == "scrapes" else server.port),
    ):
        beside.ask()  # until here all of them are accepted
        beside.times.clear()
        for _ in range(BESIDE):
            alone.ask()
            beside.ask()
    added = {
        (name, at.__name__): at(times) - at(alone.times[name])
        for name, times in beside.times.items()
        for at in (median, p95)
    }
    for (name, at), seconds in added.items():
        counted = f"ms that {CLIENTS} {kind} add to the {at} of {name}, {limit} connections"
        tally["F34", counted] += round(1000 * seconds)
    assert max(seconds for (_, at), seconds in added.items() if at == "median") <= DELAY_S, added
    assert resident_bytes(server) < 2 * resident_bytes(calm)
    assert "Traceback" not in server.said()


@pytest.mark.faults
def test_a_half_sent_form_is_given_up_and_blocks_no_sign_in(
    start_server: StartServer, database_url: str
) -> None:
    admin = run_command("keys", "create", "--tenant", "a", "--scopes", "admin", database_url=database_url)
    server = start_server(max_connections=8)
    head = b"POST /console/sign-in HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nkey="
    with ExitStack() as stack:
        half = [raw(server, stack, head) for _ in range(30)]
        form = {"key": admin.stdout.split()[-1]}
        signed_in = httpx.post(f"{server.url}/console/sign-in", data=form, timeout=PATIENCE_S)
        assert signed_in.status_code == 303
        began = monotonic()
        assert half[-1].recv(12) == b"HTTP/1.1 408"
        assert monotonic() - began < 10
