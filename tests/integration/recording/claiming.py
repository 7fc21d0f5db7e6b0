"""A claimer without its thread, an engine that does nothing, and responses that others have left."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgspec
from tokenizers import Tokenizer

from engine.request import CancelReason, EngineRequest, ModelInfo, RequestRefused
from server.configuration.shipped_files import demo_model_folder
from server.delivery.stored_responses import read_response
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.hosted_tools.tool_loop import ToolLoop
from server.model_formats.model_format import (
    ModelFormat,
    OutputParser,
    Prompt,
    PromptConversation,
    ReasoningMarks,
)
from server.model_formats.select_format import load_model_format
from server.prompting.served_model import LoadedModel
from server.protocol.responses.events import render
from server.recording.group_commit import CommitLimits
from server.recovery.claimer import Claimer
from server.store import log_append
from tests.integration.recording.recorded import Bench, recording
from tests.support.builders import (
    LATER,
    TENANT,
    SpelledFormat,
    accept,
    kill,
    make_facts,
    prompted,
    register,
)
from tests.support.event_order import is_terminal

DEMO = demo_model_folder()
STOP, OPEN, CLOSE = 1273, 1274, 1275
tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def ids(text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


MODEL_INFO = ModelInfo(vocab_size=2**31, context_length=4096, stop_ids=frozenset(), temperature=1, top_p=1)


@dataclass
class StillEngine:
    """Takes engine requests and does nothing with them."""

    requests: list[EngineRequest] = field(default_factory=list)
    refusal: str | None = None
    broken_by: str | None = None
    """The request that brings out a mistake."""
    model_info: ModelInfo = MODEL_INFO
    image_text: Any = None

    def check(self, request: Any) -> Any: ...

    def submit(self, request: Any) -> None:
        if self.refusal is not None:
            raise RequestRefused(self.refusal, "No.")  # type: ignore[arg-type]
        if request.request_id == self.broken_by:
            raise KeyError(request.request_id)
        self.requests.append(request)

    def cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None: ...

    def set_paused(self, held: bool) -> None: ...

    def stats(self) -> Any:
        return type("Stats", (), {"alive": True})

    def close(self, *, drain: bool) -> None: ...


class RealParsers:
    """The demo model's parser behind a prompt that does not matter."""

    def __init__(self, *, opens_reasoning: bool) -> None:
        self._real = load_model_format(DEMO, frozenset({STOP}))
        self._prompt = prompted(opens_reasoning)

    def write(self, conversation: PromptConversation) -> Prompt:  # noqa: ARG002 - a model format's
        return self._prompt

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:
        return self._real.encode(text, special=special, limit=limit)

    @property
    def max_chars_per_token(self) -> int | None:
        return None

    @property
    def reasoning_context(self) -> Literal["current_turn"]:
        return "current_turn"

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        return None

    def parser(self, prompt: Prompt) -> OutputParser:
        return self._real.parser(prompt)


@dataclass
class Taking:
    bench: Bench
    engine: StillEngine
    claimer: Claimer
    model_format: ModelFormat

    def leave(
        self, given: list[list[int]], *, background: bool = False, dies: bool = True, stop: str | None = None
    ) -> Run:
        """A response of which another replica has written these steps before it died."""
        database = self.bench.database
        other = register(database)
        begun = accept(database, other, background=background)
        facts = make_facts(id=begun.facts.id, created_at=begun.facts.created_at, echo=begun.facts.echo)
        parser = self.model_format.parser(self.model_format.write(PromptConversation(items=[])))
        run = Run(facts, DecodingSpec(parser, stop_strings=[stop] if stop else []))
        if stop is not None:
            with database.begin() as connection:
                connection.exec_driver_sql(
                    "update responses set asked = asked::jsonb || jsonb_build_object('stop', %s::text)"
                    " where id = %s",
                    (stop, run.facts.id),
                )
        if background:
            with database.begin() as connection:
                connection.exec_driver_sql(
                    "update responses set status = 'in_progress', replica_id = %s, attempt = 1 where id = %s",
                    (other, run.facts.id),
                )
                rows = log_append.encode_rows(TENANT, run.facts.id, 1, run.start(), [])
                log_append.append(connection, rows)
        else:
            run.start()
        self.write(run, given)
        if dies:
            kill(database, other)
        return run

    def write(self, run: Run, given: list[list[int]]) -> None:
        untold: list[int] = []
        for step in given:
            untold += step
            if made := run.tokens(step, LATER):
                with self.bench.database.begin() as connection:
                    rows = log_append.encode_rows(TENANT, run.facts.id, 1, made, untold)
                    log_append.append(connection, rows)
                untold = []

    def stream(self, run: Run) -> list[bytes]:
        return [render(run.facts.id, event) for event in self.bench.stored(run.facts.id)]


@contextmanager
def taking(
    url: str,
    model_format: ModelFormat | None = None,
    *,
    commits: CommitLimits | None = None,
    claimer_class: type[Claimer] = Claimer,
    **limits: Any,
) -> Iterator[Taking]:
    with recording(url, limits=commits) as bench:
        engine = StillEngine(model_info=limits.pop("model_info", MODEL_INFO))
        served = LoadedModel(name="model", engine=engine, model_format=model_format or SpelledFormat())
        claimer = claimer_class(
            bench.database,
            bench.replica,
            served,
            bench.recorder,
            ToolLoop(engine, McpServers(RegisteredServers(), 1), bench.recorder.deliver),
            **{"max_running": 64, "max_deaths": 3, **limits},
        )
        yield Taking(bench, engine, claimer, served.model_format)


def check_end(bench: Bench, response: UUID, before: list[bytes], status: str) -> dict[str, Any]:
    """The response ended so, behind what was told before, and everything agrees; gives it."""
    final = bench.hub.final(response)
    assert bench.recorder.wait_idle(10)
    stored = bench.stored(response)
    assert [render(response, event) for event in stored][: len(before)] == before
    assert [event.sequence_number for event in stored] == list(range(len(stored)))
    assert [is_terminal(event) for event in stored] == [False] * (len(stored) - 1) + [True]
    told: dict[str, Any] = msgspec.json.decode(final)
    assert told["status"] == status
    with bench.database.begin() as connection:
        read = read_response(connection, TENANT, response)
    assert read is not None
    assert msgspec.json.encode(read) == final
    texts = [item["content"][0]["text"] for item in told["output"]]
    assert "".join(event.body for event in stored if event.kind) == "".join(texts)
    return told
