"""F20: two real replicas over one database, asked and disturbed in any order, held against a model.

The model knows what each response must look like from what was answered before: whatever was told once stays
so, through either replica, after kills too. `make faults` plays many more games than `make test`.
"""

from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from server.protocol.ids import parse_response_id
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.content import deletion
from server.store.database import Database
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support import sse
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.states import TRANSITIONS

TOKENS = 40
MOST_KILLS = 1
"""In a game: each costs seconds."""
P2_SECONDS = 30.0
PLACES = st.integers(0, 10**6)
"""Which one of however many there are: what is drawn may not depend on what the servers did."""
AFTER = st.none() | st.integers(0, 20)


@dataclass
class Known:
    """What was ever answered of one response."""

    id: str
    stored: bool
    background: bool
    status: str = ""
    final: dict[str, Any] | None = None
    seen: bytes = b""
    """The longest beginning of its stream that anybody received, without `[DONE]`."""
    whole: bool = False
    gone: bool = False

    def answered(self, body: dict[str, Any]) -> None:
        """The response was given as an object."""
        assert not self.gone, "a deleted response was answered"
        assert body["id"] == self.id
        status = body["status"]
        assert self.status in ("", status) or is_way(self.status, status), (self.status, status)
        self.status = status
        if self.final is not None:
            assert body == self.final, "an ended response has changed"
        elif status in TERMINAL_STATUSES:
            self.final = body

    def told(self, raw: bytes) -> None:
        """So many whole blocks of its stream, from the start, were received."""
        whole = raw.endswith(sse.DONE)
        events = b"".join(block for block in sse.split(raw) if block not in (sse.DONE, sse.KEEP_ALIVE))
        longer, shorter = sorted((events, self.seen), key=len, reverse=True)
        assert longer.startswith(shorter), "two streams of one response differ"
        assert not (self.whole and len(events) > len(self.seen)), "a stream went on after its end"
        assert not whole or len(events) >= len(self.seen), "a stream ended before another's last event"
        self.seen, self.whole = longer, self.whole or whole
        if whole and self.stored:
            self.answered(sse.parse(events)[-1].json["response"])


def is_way(old: str, new: str) -> bool:
    """Whether one status may be seen some time after the other."""
    return any(
        before == old and (new in after or (TERMINAL_STATUSES & after and new in TERMINAL_STATUSES))
        for before, after in TRANSITIONS.items()
    )


@dataclass
class Open:
    """A stream that is being read."""

    known: Known
    stream: sse.Stream
    server: ServerProcess


class Machine(RuleBasedStateMachine):
    """One game."""

    servers: list[ServerProcess]
    database_url: str
    database: Database
    tally: Tally

    @initialize()
    def begin(self) -> None:
        self.known: list[Known] = []
        self.open: list[Open] = []
        self.kills = 0
        self.tally["F20", "games"] += 1

    def ask(self, method: str, path: str, at: int, **more: Any) -> httpx.Response:
        return httpx.request(method, f"{self.servers[at].api}{path}", timeout=60, **more)

    # --- creating ---

    @rule(at=st.integers(0, 1), tokens=st.integers(1, TOKENS), background=st.booleans())
    def create(self, at: int, tokens: int, background: bool) -> None:
        body = {"model": MODEL, "input": "Hi", "max_output_tokens": tokens, "background": background}
        answer = self.ask("POST", "/responses", at, json=body)
        assert answer.status_code == 200, answer.text
        known = Known(answer.json()["id"], True, background)
        known.answered(answer.json())
        assert background or known.status in TERMINAL_STATUSES
        self.known.append(known)

    @rule(
        at=st.integers(0, 1),
        tokens=st.integers(1, TOKENS),
        kind=st.sampled_from(["stored", "background", "unstored"]),
        read=st.integers(1, 12),
    )
    def stream(self, at: int, tokens: int, kind: str, read: int) -> None:
        body = {
            "model": MODEL,
            "input": "Hi",
            "max_output_tokens": tokens,
            "store": kind != "unstored",
            "background": kind == "background",
        }
        stream = sse.create(self.servers[at].url, body)
        assert stream.status == 200
        first = stream.take(1)[0]
        known = Known(first.json["response"]["id"], kind != "unstored", kind == "background")
        self.known.append(known)
        self.open.append(Open(known, stream, self.servers[at]))
        self.read_on(self.open[-1], read)

    def read_on(self, one: Open, count: int) -> None:
        read = one.stream.take(count)
        one.known.told(whole_blocks(one.stream.raw))
        if len(read) < count:
            self.close(one)

    def close(self, one: Open) -> None:
        one.stream.close()
        self.open.remove(one)

    @rule(which=PLACES, count=st.integers(1, 30))
    def read_more(self, which: int, count: int) -> None:
        if self.open:
            self.read_on(self.open[which % len(self.open)], count)

    @rule(which=PLACES)
    def hang_up(self, which: int) -> None:
        if self.open:
            self.close(self.open[which % len(self.open)])

    # --- asking ---

    @precondition(lambda self: self.known)
    @rule(which=PLACES, at=st.integers(0, 1))
    def retrieve(self, which: int, at: int) -> None:
        known = self.known[which % len(self.known)]
        answer = self.ask("GET", f"/responses/{known.id}", at)
        self.expect(known, answer)

    def expect(self, known: Known, answer: httpx.Response) -> None:
        if known.stored and not known.gone:
            assert answer.status_code == 200, answer.text
            known.answered(answer.json())
        else:
            assert answer.status_code == 404, answer.text
            assert set(answer.json()) == {"error"}

    @precondition(lambda self: self.known)
    @rule(which=PLACES, at=st.integers(0, 1), after=AFTER, count=st.integers(1, 20))
    def replay(self, which: int, at: int, after: int | None, count: int) -> None:
        known = self.known[which % len(self.known)]
        if known.gone or not known.stored:
            return self.expect(known, self.ask("GET", f"/responses/{known.id}?stream=true", at))
        told = len(sse.parse(known.seen))
        if after is not None and after >= told:  # nobody resumes after what nobody was told
            after = told - 1 if told else None
        with sse.replay(self.servers[at].url, known.id, after) as stream:
            frames = stream.take(count if known.final is None else 10**6)
        first = 0 if after is None else after + 1
        assert [frame.number for frame in frames] == list(range(first, first + len(frames)))
        seen = {frame.number: frame.raw for frame in sse.parse(known.seen)}
        assert all(seen.get(frame.number, frame.raw) == frame.raw for frame in frames)
        return None

    @precondition(lambda self: self.known)
    @rule(which=PLACES, at=st.integers(0, 1))
    def cancel(self, which: int, at: int) -> None:
        known = self.known[which % len(self.known)]
        answer = self.ask("POST", f"/responses/{known.id}/cancel", at)
        if answer.status_code == 400:  # it had ended by itself before
            answer = self.ask("GET", f"/responses/{known.id}", at)
            assert not answer.json()["background"]
        self.expect(known, answer)
        assert known.gone or not known.stored or known.status in TERMINAL_STATUSES

    @precondition(lambda self: self.known)
    @rule(which=PLACES, at=st.integers(0, 1))
    def delete(self, which: int, at: int) -> None:
        known = self.known[which % len(self.known)]
        answer = self.ask("DELETE", f"/responses/{known.id}", at)
        assert answer.status_code == (200 if known.stored and not known.gone else 404), answer.text
        self.forget(known)

    def forget(self, known: Known) -> None:
        """Its readers may be cut off from now on."""
        if known.stored:
            known.gone = True
            for one in [one for one in self.open if one.known is known]:
                self.close(one)

    # --- disturbing ---

    @rule(which=PLACES)
    def purge(self, which: int) -> None:
        ended = [known for known in self.known if known.final and not known.gone]
        if not ended:
            return
        known = ended[which % len(ended)]
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            response = parse_response_id(known.id)
            connection.execute("update responses set expires_at = created_at where id = %s", (response,))
        with self.database.begin() as connection_of_pool:
            assert deletion.purge_batch(connection_of_pool, 0.0).responses == 1
        self.forget(known)

    @precondition(lambda self: self.kills < MOST_KILLS)
    @rule(at=st.integers(0, 1))
    def kill(self, at: int) -> None:
        self.kills += 1
        self.tally["F20", "kills survived"] += 1
        server = self.servers[at]
        server.kill()
        for one in [one for one in self.open if one.server is server]:
            self.close(one)
        server.start()

    def teardown(self) -> None:
        for one in list(getattr(self, "open", [])):
            self.read_on(one, 10**6)
        for known in getattr(self, "known", []):
            if known.stored and not known.gone:
                eventually(lambda known=known: self.has_ended(known), within=P2_SECONDS)  # type: ignore[misc]
                for server in self.servers:
                    with sse.replay(server.url, known.id) as stream:
                        known.told(stream.read())
                assert known.whole
        self.tally["F20", "responses followed"] += len(getattr(self, "known", []))

    def has_ended(self, known: Known) -> bool:
        self.expect(known, self.ask("GET", f"/responses/{known.id}", 0))
        return known.final is not None


def whole_blocks(raw: bytes) -> bytes:
    return raw[: raw.rfind(b"\n\n") + 2] if b"\n\n" in raw else b""


@pytest.mark.parametrize(
    ("games", "steps"), [(6, 25), pytest.param(200, 30, marks=pytest.mark.faults)], ids=["few", "many"]
)
def test_two_replicas_that_are_asked_and_disturbed_in_any_order_agree_with_the_model(
    start_server: StartServer, database_url: str, games: int, steps: int, tally: Tally
) -> None:
    paced: dict[str, object] = {"scripted_tokens": 1000, "scripted_step_seconds": 0.005, "grace_seconds": 0.5}
    Machine.servers = [start_server(**paced) for _ in range(2)]
    Machine.database_url, Machine.tally = database_url, tally
    Machine.database = Database(database_url, pool_size=1)
    # A game takes seconds and is not the same twice, so there is no use in looking for a smaller one.
    chosen = settings(
        max_examples=games,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=games < 100,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    followed = tally["F20", "responses followed"]
    try:
        run_state_machine_as_test(Machine, settings=chosen)
    finally:
        Machine.database.close()
    assert tally["F20", "responses followed"] >= followed + games
