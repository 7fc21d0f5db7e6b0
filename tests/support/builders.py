"""Values that tests of the server begin with, and a parser whose tokens spell out what it will say.

A `SpelledParser` reads tokens that are code points: text by default, reasoning from `THINK` on. `HALF`
stands for a token that cuts a character in two: it gives nothing until the next token comes.
"""

# ruff: noqa: ARG002 - the fakes here have the arguments of what they stand for

import asyncio
import dataclasses
import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from hypothesis import HealthCheck, settings
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from engine.request import TokenUsage
from server.delivery.hub import Hub, Published
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run, RunFacts
from server.generation.run_log import RunLog
from server.model_formats.model_format import (
    Delta,
    Prompt,
    PromptConversation,
    ReasoningDelta,
    ReasoningMarks,
    TextDelta,
)
from server.protocol import ids
from server.protocol.responses.events import Event, first_events, render
from server.protocol.responses.input import CompactionTrigger, ItemReference
from server.protocol.responses.items import InputText, Item, Message
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import FACTS, Echo, Ending, ReasoningEcho, ResponseFacts, TextEcho
from server.request_input.resolve_input import read_request_input, with_own_id
from server.store import log_append
from server.store.cluster import leases
from server.store.content import responses
from server.store.content.item_rows import stored_item
from server.store.content.responses import End, FinishedRow, NewResponse, ResponseKey, finish_all
from server.store.database import Connection, Database, clock
from server.store.schema.upgrade import newest_revision
from tests.support.eventually import eventually
from tests.support.rounds import example_count

TENANT = "acme"
RESPONSE = UUID("01890000-0000-7000-8000-0000000000ab")
CREATED = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
LATER = datetime(2026, 5, 4, 3, 2, 7, tzinfo=UTC)
USAGE = TokenUsage(prompt=11, cached=3, output=7)

THINK = 0x200000
HALF = 0x1FFFFF
BREAK_PARSER = 0x1FFFFE
"""A token that makes a `SpelledParser` raise, then and at its close."""

SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def examples(count: int) -> settings:
    """A sample of so many of hypothesis's examples, however long one of them takes on a busy machine."""
    unimportant = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(max_examples=example_count(count), deadline=None, suppress_health_check=unimportant)


def say(text: str) -> tuple[int, ...]:
    """Tokens that a `SpelledParser` reads as this answer."""
    return tuple(map(ord, text))


def think(text: str) -> tuple[int, ...]:
    """Tokens that a `SpelledParser` reads as this reasoning."""
    return tuple(THINK + ord(character) for character in text)


class SpelledParser:
    """See the head of this file."""

    def __init__(self) -> None:
        self.reasoning_tokens = 0
        self._half = False
        self._broken = False

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return [delta for token in token_ids for delta in self._read(token)]

    def close(self) -> list[Delta]:
        if self._broken:
            raise RuntimeError("This parser is broken.")
        cut, self._half = self._half, False
        return [TextDelta("\ufffd")] if cut else []

    def _read(self, token: int) -> list[Delta]:
        if token == BREAK_PARSER:
            self._broken = True
            raise RuntimeError("A token that cannot be read.")
        self._half = token == HALF
        if self._half:
            return []
        if token < THINK:
            return [TextDelta(chr(token))]
        self.reasoning_tokens += 1
        return [ReasoningDelta(chr(token - THINK))]


class SpelledFormat:
    """Prompts do not matter to it; its parsers are spelled ones."""

    def write(self, conversation: PromptConversation) -> Prompt:
        return prompted()

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:
        return tuple(text.encode())

    @property
    def max_chars_per_token(self) -> int | None:
        return None

    @property
    def reasoning_context(self) -> Literal["current_turn"]:
        return "current_turn"

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        return None

    def parser(self, prompt: Prompt) -> SpelledParser:
        return SpelledParser()


PROMPT_HASH = hashlib.sha256(array("i", (1, 2, 3)).tobytes()).digest()


def prompted(opens_reasoning: bool = False) -> Prompt:
    """A prompt of which only the end matters."""
    return Prompt(token_ids=(1, 2, 3), stop_ids=frozenset(), opens_reasoning=opens_reasoning)


def make_echo(**changes: Any) -> Echo:
    fields: dict[str, Any] = {
        "background": False,
        "frequency_penalty": 0.0,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "model",
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": ReasoningEcho(),
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": TextEcho(),
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
    }
    return Echo(**{**fields, **changes})


def make_facts(**changes: Any) -> RunFacts:
    echo = changes.get("echo") or make_echo()
    fields: dict[str, Any] = {
        "tenant": TENANT,
        "id": RESPONSE,
        "key_id": "k1",
        "model": echo.model,
        "background": echo.background,
        "echo": echo,
        "created_at": CREATED,
        "attempt": 1,
        "prompt_tokens": 11,
    }
    return RunFacts(**{**fields, **changes})


def make_run(*stops: str, **changes: Any) -> Run:
    return Run(make_facts(**changes), DecodingSpec(SpelledParser(), stop_strings=stops))


def resume(run: Run, log: RunLog) -> list[Event]:
    """Brings a fresh run of one turn to the end of its log; the events that its tokens give now."""
    run.emit_start_events(log)
    events = run.feed_logged_tokens(log.token_ids, log.events, log.first_token_at)
    run.set_next_seq(log.next_seq)
    return events


def make_ending(**changes: Any) -> Ending:
    fields: dict[str, Any] = {
        "status": "completed",
        "first_token_at": LATER,
        "finished_at": LATER,
        "input_tokens": 4,
        "cached_tokens": 3,
        "output_tokens": 2,
        "reasoning_tokens": 1,
    }
    return Ending(**{**fields, **changes})


def read_items(given: object) -> list[Item]:
    """The `input` of a request as items of `RESPONSE`."""
    _, read = read_request_input(CreateResponse(model="m", input=given))  # type: ignore[arg-type]  # hostile too
    return [
        with_own_id(item, RESPONSE, "i", n)
        for n, item in enumerate(read)
        if not isinstance(item, ItemReference | CompactionTrigger)
    ]


def make_message(response: UUID, index: int, text: str) -> Message:
    return Message(ids.item_id("msg", response, "i", index), "completed", "user", [InputText(text)])


def register(database: Database, model: str = "model", role: str = "all") -> UUID:
    """A replica that is alive."""
    with database.begin() as connection:
        return leases.register_replica(
            connection,
            host="here",
            pid=1,
            version="0",
            role=role,
            models=[model],
            revision=newest_revision(),
        )


def kill(database: Database, replica: UUID) -> None:
    """Has a replica declared dead and what it left abandoned."""
    with database.begin() as connection:
        connection.exec_driver_sql("update replicas set heartbeat_at = 'epoch' where id = %s", (replica,))
        seen = leases.other_heartbeats(connection, ids.new_uuid())
        leases.expire_replicas(connection, {replica: seen[replica]}, 10.0)
        leases.release_orphans(connection)


def make_row(
    response: UUID, created_at: datetime, *, echo: Echo | None = None, **changes: Any
) -> NewResponse:
    """The row of a new response."""
    request = echo or make_echo()
    names = {"tenant": TENANT, "key_id": "k1"} | {
        name: changes.pop(name) for name in FACTS if name in changes
    }
    facts = ResponseFacts(
        id=response, created_at=created_at, background=request.background, model=request.model, **names
    )
    fields: dict[str, Any] = {
        "previous_id": None,
        "stream": True,
        "priority": 0,
        "seed": 1,
        "prompt_hash": PROMPT_HASH,
        "asked": msgspec.json.encode(CreateResponse(model=request.model, input="")).decode(),
        "metadata": "{}",
        "lifetime": None,
    }
    return NewResponse(facts=facts, request=msgspec.json.encode(request).decode(), **{**fields, **changes})


def insert_response(
    connection: Connection,
    replica: UUID,
    *,
    id: UUID,  # noqa: A002 - the column's name
    tenant: str = TENANT,
    previous: UUID | None = None,
    echo: Echo | None = None,
    inputs: Sequence[str] = (),
    lifetime: timedelta | None = None,
) -> datetime:
    """A response in progress with its input, as admission writes it; its `created_at`.

    It may follow what admission would not find.
    """
    request = echo or make_echo()
    row = make_row(
        id, clock(connection), tenant=tenant, previous_id=previous, echo=request, lifetime=lifetime
    )
    given = [stored_item(make_message(id, index, text)) for index, text in enumerate(inputs)]
    owner = None if request.background else replica
    if not responses.insert(connection, row, given, (), owner):
        assert responses.insert(connection, dataclasses.replace(row, previous_id=None), given, (), owner)
        connection.exec_driver_sql(
            "update responses set previous_id = %s where tenant = %s and id = %s", (previous, tenant, id)
        )
    return row.facts.created_at


def accept(
    database: Database,
    replica: UUID,
    *,
    tenant: str = TENANT,
    store: bool = True,
    previous: UUID | None = None,
    background: bool = False,
    stops: Sequence[str] = (),
) -> Run:
    """A run that has begun, its row and first events written, unless it is not to be stored.

    One for the background waits in the queue.
    """
    response = ids.new_uuid()
    echo = make_echo(store=store, background=background)
    if not store:
        run = make_run(*stops, id=response, tenant=tenant, echo=echo, created_at=datetime.now(UTC))
        run.start()
        return run
    with database.begin() as connection:
        created = insert_response(
            connection, replica, id=response, tenant=tenant, previous=previous, echo=echo, inputs=["Hello"]
        )
        run = make_run(*stops, id=response, tenant=tenant, echo=echo, created_at=created)
        begun = first_events(run.facts, run.facts.echo) + ([] if echo.background else run.start())
        log_append.append(connection, log_append.encode_rows(tenant, response, 1, begun, []))
    return run


def rendered(response: UUID, made: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as a client's JSON parser sees them."""
    return [msgspec.json.decode(render(response, event)) for event in made]


@dataclass(frozen=True)
class Told:
    """One call of `publish`."""

    batch: list[Published]


class SpyHub(Hub):
    """Follows every response; notes what it is told, and calls `when_told` first.

    `turns` counts also the times at which there was nothing to tell.
    """

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop())
        self._loop.close()
        self.turns = 0
        self.told: list[Told] = []
        self.when_told: Callable[[list[Published]], None] = lambda _batch: None

    def has_channel(self, response_id: UUID) -> bool:
        return True

    def publish(self, batch: Iterable[Published]) -> None:
        given = list(batch)
        if given:
            self.when_told(given)
            self.told.append(Told(given))
        self.turns += 1

    def frames(self, response: UUID) -> list[bytes]:
        return [
            frame
            for told in list(self.told)
            for published in told.batch
            if published.response_id == response
            for frame in published.frames
        ]

    def final(self, response: UUID) -> bytes:
        """Waits for the response's end."""
        found = eventually(lambda: self._final(response))
        assert found is not None
        return found

    def _final(self, response: UUID) -> bytes | None:
        finals = [
            published.final
            for told in list(self.told)
            for published in told.batch
            if published.response_id == response and published.final is not None
        ]
        assert len(finals) < 2, "told twice of one end"
        return finals[0] if finals else None


def finish(
    connection: Connection, tenant: str, response_id: UUID, replica: UUID, attempt: int, ending: Ending
) -> FinishedRow:
    """Ends one response."""
    end = End(ResponseKey(tenant, response_id), attempt, ending)
    return finish_all(connection, replica, [end])[end.key]
