"""F50: a standby that lags is promoted under two replicas, and a backup is put in place of their database.

Both take back what was committed in the last seconds, whatever the durability.
"""

import random
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_cluster import Cluster
from tests.fix_postgres import postgres_folder
from tests.fix_proxy import Through
from tests.fix_server import StartServer, StartServerOn
from tests.fix_tally import Tally
from tests.support.attached import HTTP, Body, ask, output_text, uncut
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.sse import DONE, KEEP_ALIVE, Frame, parse, text_of

pytestmark = pytest.mark.faults

STEP_S = 0.02
LAG_S, LONG_LAG_S = 3.0, 14.0
"""The longer one is longer than what was acknowledged is retained."""
MEDIUM, SHORT = 200, 10
"""Tokens of responses that end in the lag, and that begin in it, too."""
OF_A_KIND = 8
PATIENCE_S = 90.0
LOST = ("events_lost", "server_error")
"""Error codes: events are missing; or an end is forgotten that is too old, as if its replica had died."""
PACE: dict[str, object] = {"scripted_tokens": 5000, "scripted_step_seconds": STEP_S, "lease_seconds": 10}


class Client:
    """Reads one response's stream over one connection, however that ends."""

    def __init__(self, server: ServerProcess, body: Body) -> None:
        self.server, self.body = server, body
        self.received = b""
        self.status = 0

    def follow(self) -> None:
        try:
            with HTTP.stream(
                "POST", f"{self.server.api}/responses", json={**self.body, "stream": True}
            ) as answer:
                self.status = answer.status_code
                for piece in answer.iter_bytes():
                    self.received += piece
        except httpx.HTTPError:
            pass

    @property
    def frames(self) -> list[Frame]:
        """The events that it has, without an error in their place."""
        told = self.received.replace(KEEP_ALIVE, b"")
        frames = parse(told[: told.rfind(b"\n\n") + 2] if b"\n\n" in told else b"")
        return [frame for frame in frames if frame.event != "error"]

    @property
    def response_id(self) -> str:
        name: str = self.frames[0].json["response"]["id"]
        return name

    @property
    def has_end(self) -> bool:
        return self.received.endswith(DONE)

    @property
    def has_error(self) -> bool:
        return b"event: error" in self.received


class Crowd:
    """Clients of two replicas, in threads."""

    def __init__(self, servers: Sequence[ServerProcess]) -> None:
        self.servers = servers
        self.clients: list[Client] = []
        self._choose = random.Random(0)
        self._pool = ThreadPoolExecutor(8 * OF_A_KIND)

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def begin(self, tokens: int) -> list[Client]:
        """New clients of both, half of them in the background, that have begun to read."""
        begun = []
        for number in range(OF_A_KIND):
            body = ask(number, self._choose, background=number % 4 < 2, max_output_tokens=tokens)
            begun.append(Client(self.servers[number % 2], body))
            self._pool.submit(begun[-1].follow)
        eventually(lambda: all(one.received for one in begun), within=PATIENCE_S)
        self.clients += begun
        return begun


@pytest.fixture
def standby(own_cluster: Cluster) -> Iterator[Cluster]:
    """A running standby of the module's cluster."""
    home = postgres_folder()
    own_cluster.start()
    copy = own_cluster.back_up(home, follows=True)
    copy.start()
    yield copy
    copy.end()
    shutil.rmtree(home)


@pytest.fixture
def backup_home() -> Iterator[Path]:
    home = postgres_folder()
    yield home
    shutil.rmtree(home)


@pytest.mark.parametrize("durability", ["normal", "strict"])
def test_no_response_has_a_hole_when_a_standby_that_lags_by_3_s_is_promoted(
    own_database_url: str,
    own_cluster: Cluster,
    standby: Cluster,
    through: Through,
    start_server: StartServer,
    start_server_on: StartServerOn,
    durability: str,
    tally: Tally,
) -> None:
    proxy = through(own_database_url)
    servers = [start_server_on(proxy.url, **PACE, durability=durability) for _ in range(2)]
    with psycopg.connect(standby.url, autocommit=True) as administrator, Crowd(servers) as crowd:
        before = [*crowd.begin(tokens_of(LAG_S)), *crowd.begin(MEDIUM)]
        catch_up(own_cluster, administrator)
        administrator.execute("alter system set primary_conninfo = ''")
        administrator.execute("select pg_reload_conf()")
        receives = "select 1 from pg_stat_wal_receiver"
        eventually(lambda: administrator.execute(receives).fetchone() is None, within=PATIENCE_S)
        within = in_lag(crowd, before, LAG_S)
        with proxy.down():
            own_cluster.crash()
            administrator.execute("select pg_promote()")
            proxy.lead_to(standby.postgres.url_of(str(conninfo_to_dict(own_database_url)["dbname"])))
        tally["F50", "standbys promoted that lag"] += 1
        await_ends(crowd)
    check(servers[0], start_server, before, within, f"promoted, {durability}", LAG_S, tally)


@pytest.mark.parametrize("lag_s", [LAG_S, LONG_LAG_S])
def test_no_response_has_a_hole_when_an_older_backup_is_put_in_place(
    own_database_url: str,
    own_cluster: Cluster,
    backup_home: Path,
    start_server: StartServer,
    start_server_on: StartServerOn,
    lag_s: float,
    tally: Tally,
) -> None:
    servers = [start_server_on(own_database_url, **PACE, durability="strict") for _ in range(2)]
    with Crowd(servers) as crowd:
        before = [*crowd.begin(tokens_of(lag_s)), *crowd.begin(MEDIUM)]
        backup = own_cluster.back_up(backup_home)
        within = in_lag(crowd, before, lag_s)
        own_cluster.crash()
        own_cluster.restore(backup)
        own_cluster.start()
        tally["F50", "backups put in place"] += 1
        await_ends(crowd)
    check(servers[0], start_server, before, within, f"restored {lag_s:.0f} s back", lag_s, tally)


def tokens_of(lag_s: float) -> int:
    """Of a response that runs through the lag and some seconds after it."""
    return int((lag_s + 8) / STEP_S)


def catch_up(primary: Cluster, standby: psycopg.Connection) -> None:
    with psycopg.connect(primary.url) as connection:
        row = connection.execute("select pg_current_wal_lsn()").fetchone()
    reached = "select pg_last_wal_replay_lsn() >= %s"
    eventually(lambda: standby.execute(reached, row).fetchone() == (True,), within=PATIENCE_S)


def in_lag(crowd: Crowd, before: Sequence[Client], lag_s: float) -> list[Client]:
    """Responses that are accepted in the lag, some of which end in it, as do some that began before."""
    until = monotonic() + lag_s
    within = crowd.begin(SHORT)
    medium = [one for one in before if one.body["max_output_tokens"] == MEDIUM]
    eventually(lambda: all(one.has_end for one in [*within, *medium]), within=PATIENCE_S)
    Event().wait(max(0.0, until - monotonic()))
    return [*within, *crowd.begin(tokens_of(lag_s))]


def await_ends(crowd: Crowd) -> None:
    """Until every response that is stored has ended, as either replica says."""

    def has_ended(client: Client) -> bool:
        answer = HTTP.get(f"{crowd.servers[0].api}/responses/{client.response_id}")
        return answer.status_code == 404 or (
            answer.status_code == 200 and answer.json()["status"] not in ("queued", "in_progress")
        )

    eventually(lambda: all(has_ended(client) for client in crowd.clients), within=PATIENCE_S)


def check(
    server: ServerProcess,
    start_server: StartServer,
    before: Sequence[Client],
    within: Sequence[Client],
    how: str,
    lag_s: float,
    tally: Tally,
) -> None:
    quick = start_server(scripted_tokens=PACE["scripted_tokens"])
    texts = uncut(quick, [client.body for client in before])
    for client, text in zip(before, texts, strict=True):
        result = check_one(client, server, text, forgotten=lag_s > LAG_S)
        tally["F50", f"{how}: running or ended before: {result}"] += 1
    for client in within:
        answer = HTTP.get(f"{server.api}/responses/{client.response_id}")
        assert answer.status_code == 404, answer.text
        tally["F50", f"{how}: accepted in the lag, 404"] += 1


def check_one(client: Client, server: ServerProcess, text: str, *, forgotten: bool) -> str:
    """Fails on a hole, and on an end or a text that changed without an error; returns what became of it.

    `forgotten`: its end may be older than what is retained.
    """
    address = f"{server.api}/responses/{client.response_id}"
    answer = HTTP.get(address)
    assert answer.status_code == 200, answer.text
    final = answer.json()
    stored = parse(HTTP.get(f"{address}?stream=true").content)
    assert text_of(stored) == output_text(final)
    assert stored[-1].json["response"] == final
    if final["status"] == "failed":
        assert final["error"]["code"] in LOST[: 1 + forgotten], final["error"]
        return "failed, and its client had its end" if client.has_end else "failed"
    assert [frame.number for frame in stored] == list(range(len(stored)))
    assert output_text(final) == text
    if [frame.data for frame in stored[: len(client.frames)]] == [one.data for one in client.frames]:
        return "whole"
    # Another replica was the first to claim it after the failover: it says the same, in other pieces.
    assert client.has_error or (client.has_end and text_of(client.frames) == text)
    return "made again, and its client had an error" if client.has_error else "made again, the same text"
