"""F31: an erasure that is killed anywhere, or runs beside load: nothing is left, and others lose nothing."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from time import monotonic
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection

from server.maintenance.erasure import SETTLE_SECONDS, Erasure
from server.store.database import Database
from server.store.erasure.subject import Subject
from tests.acceptance.test_keys import make_key
from tests.fix_server import PACED, StartServer
from tests.support.erasing import Client, fill, rows_of, traces
from tests.support.eventually import eventually
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, run_command

pytestmark = pytest.mark.faults
GONE, STAYS = "gone-k7q", "stays-w3x"
USER = "ada-5f@example.org"
LOADERS = 6
PATIENCE_S = 600.0


class QuickClock:
    """Each pause takes as long as servers have to settle: an erasure does not look again and again."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)
        self._ahead += SETTLE_SECONDS


class Killed(Exception):
    """Stands for kill -9: the transaction under way is rolled back."""


class KilledDatabase(Database):
    """Commits so many transactions, and then no more."""

    left = 0

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        with super().begin() as connection:
            yield connection
            self._spend()

    def retry(self, work: Any, seconds: float = 5.0) -> Any:  # noqa: ARG002
        with self.begin() as connection:
            return work(connection)

    def _spend(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


def test_an_erasure_that_is_killed_at_any_point_leaves_a_sound_database_and_goes_on(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(**PACED)
    key = make_key(database_url, "--tenant", GONE)
    who = {"safety_identifier": "ada-5f"}
    with closing(Client(server.api, key.text, GONE)) as client:
        made = fill(client, 16, **who)
        running = client.say(background=True, **who)["id"]
    database = KilledDatabase(database_url, pool_size=1)
    with closing(database):
        for user in ("ada-5f", None):
            for killed_after in range(200):
                database.left = killed_after
                clock = QuickClock()
                erasure = Erasure(database, Subject(GONE, user), 10.0, clock.now, clock.sleep)
                try:
                    done = erasure.run(PATIENCE_S).complete
                except Killed:
                    check(database_url)
                else:
                    assert done
                    break
            else:
                raise AssertionError("it never came to its end")
            left = [GONE] if user is None else [user]
            assert traces(database_url, *left, running, *made.values()) == []


def load(
    server: ServerProcess, key: str, marker: str, user: str, stop: threading.Event, seed: int
) -> list[str]:
    """Makes all kinds of responses until it is told to stop, or its key is refused; returns their ids."""
    made: list[str] = []
    randomness = random.Random(seed)
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.api, headers=headers, timeout=60) as client:
        while not stop.is_set():
            body: dict[str, Any] = {
                "model": MODEL,
                "input": marker,
                "safety_identifier": user,
                "max_output_tokens": randomness.choice((16, 16, 400)),
            }
            match randomness.randrange(4):
                case 0:
                    body["background"] = True
                case 1 if made:
                    body["previous_response_id"] = randomness.choice(made)
                case 2:
                    body |= {"store": False, "max_output_tokens": 16}
            answer = client.post("/responses", json=body)
            if answer.status_code == 401:
                break
            if answer.status_code == 200 and body.get("store") is not False:
                made.append(answer.json()["id"])
    return made


def test_under_load_on_two_replicas_a_tenant_and_a_user_leave_nothing_and_others_lose_nothing(
    start_server: StartServer, database_url: str
) -> None:
    servers = [start_server(**PACED, max_running=4) for _ in range(2)]
    keys = {tenant: make_key(database_url, "--tenant", tenant).text for tenant in (GONE, STAYS)}
    with closing(Client(servers[0].api, keys[STAYS], "of-bob")) as bob:
        kept = fill(bob, 16, safety_identifier="bob")
    before = rows_of(database_url, STAYS)
    with closing(Client(servers[1].api, keys[GONE], GONE)) as client:
        fill(client, 16)
    stop, ada_stops = threading.Event(), threading.Event()
    with ThreadPoolExecutor(3 * LOADERS) as pool:
        with ExitStack() as stack:
            stack.callback(stop.set)
            stack.callback(ada_stops.set)
            loads = [
                pool.submit(load, servers[n % 2], keys[tenant], marker, user, until, n)
                for n in range(LOADERS)
                for tenant, marker, user, until in (
                    (GONE, GONE, "x", stop),
                    (STAYS, "of-ada-5f", USER, ada_stops),
                    (STAYS, "of-bob", "bob", stop),
                )
            ]
            eventually(lambda: len(rows_of(database_url, STAYS)["responses"]) > 40)
            erased = run_command("erase", "--tenant", GONE, "--yes", database_url=database_url)
            assert erased.returncode == 0, erased.stderr
            assert traces(database_url, GONE) == []
            ada_stops.set()
            erased = run_command(
                "erase", "--tenant", STAYS, "--user", USER, "--yes", database_url=database_url
            )
            assert erased.returncode == 0, erased.stderr
        made = [run.result() for run in loads]
    run_command("erase", "--tenant", STAYS, "--user", USER, "--yes", database_url=database_url)
    gone = [id_ for n, ids in enumerate(made) if n % 3 < 2 for id_ in ids]
    assert traces(database_url, GONE, USER, "of-ada-5f", *gone) == []
    with httpx.Client(base_url=servers[1].api, headers={"authorization": f"Bearer {keys[STAYS]}"}) as client:
        for id_ in (id_ for ids in made[2::3] for id_ in ids):
            eventually(lambda one=id_: client.get(f"/responses/{one}").json()["status"] in ENDED)  # type: ignore[misc]
    after = rows_of(database_url, STAYS)
    for table, rows in before.items():
        if table in ("responses", "items", "response_streams", "conversations", "conversation_items"):
            assert set(rows) <= set(after[table]), f"rows of {kept} changed in {table}"
    assert all(server.said().count("CRITICAL") == 0 for server in servers)


ENDED = ("completed", "incomplete", "failed", "cancelled")
