"""What the recorder's thread receives, and what one commit writes for one run. Types without behaviour."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from engine.request import Failed, Finished, Outbound, PromptLogprobs, Tokens
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run
from server.hosted_tools.tool_specs import ToolResult
from server.protocol.responses.events import Event

SERVER_ERROR = "server_error"


@dataclass(frozen=True, slots=True)
class StartRun:
    """A run whose response has been accepted or claimed; its engine messages follow."""

    run: Run
    starts: bool = True
    """It is going to be generated; else only its end follows."""


@dataclass(frozen=True, slots=True)
class FailRun:
    """End this run as failed; sent by whoever knows that no engine will."""

    response_id: UUID
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class DropRun:
    """End this run as cancelled; sent by whoever knows that no engine has it."""

    response_id: UUID


@dataclass(frozen=True, slots=True)
class ReleaseRuns:
    """Give these runs up, unended: another replica goes on with them. None means all in the background."""

    response_ids: frozenset[UUID] | None = None


@dataclass(frozen=True, slots=True)
class StopRecorder:
    """The recorder's thread ends after what it was given before this."""


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A call that the server made has given this."""

    response_id: UUID
    index: int
    """Of its item in the output."""
    outcome: ToolResult


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The model's next turn begins, whose tokens are read so; with no decoding there is no token left."""

    response_id: UUID
    decoding: DecodingSpec | None
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A response's end is asked for, and the engine may have no engine request of it: it is at its calls."""

    response_id: UUID


Inbound = (
    StartRun
    | FailRun
    | DropRun
    | ReleaseRuns
    | StopRecorder
    | ToolCallFinished
    | StartTurn
    | CancelRequested
    | Outbound
)


@dataclass(slots=True)
class RunUpdate:
    """What one commit does for one run."""

    run: Run
    events: list[Event] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    handed_back: bool = False
    died: bool = False
    """It is handed back because the engine died of it, or beside it."""
    first_seq: int = field(init=False)
    """The number of the first event, if there is one."""
    broken: bool = False
    """What the run has made cannot even be turned into events, so there is no writing it."""
    unreadable: bool = False
    """The run ends because its tokens could not be read; its engine request is cancelled afterwards."""

    def __post_init__(self) -> None:
        self.first_seq = self.run.next_seq

    @property
    def over(self) -> bool:
        """This replica has nothing more to do with the run."""
        return self.handed_back or self.run.ending is not None


def _coalesce_tokens(messages: Sequence[Inbound]) -> Iterator[Inbound]:
    """The same messages, neighbouring tokens of an engine request merged.

    So deltas get longer, and fewer, when more than one step of the engine is written at a time.
    """
    waiting: dict[str, list[Tokens]] = {}
    for message in messages:
        if isinstance(message, Tokens):
            waiting.setdefault(key_of(message), []).append(message)
            continue
        if isinstance(message, ReleaseRuns):
            yield from (_merge_tokens(waiting.pop(engine_request)) for engine_request in list(waiting))
        elif (engine_request := key_of(message)) in waiting:
            yield _merge_tokens(waiting.pop(engine_request))
        yield message
    yield from map(_merge_tokens, waiting.values())


@lru_cache(maxsize=4096)
def response_of(engine_request_id: str) -> UUID:
    """The response that an engine request is a turn of: asked for of every token, and so remembered."""
    return UUID(hex=engine_request_id.partition(".")[0])


def key_of(message: Inbound) -> str:
    """What messages to one response have in common, its id in hexadecimal; empty if there is no such one."""
    match message:
        case StartRun(run):
            return run.facts.id.hex
        case (
            FailRun(response)
            | DropRun(response)
            | ToolCallFinished(response)
            | StartTurn(response)
            | CancelRequested(response)
        ):
            return response.hex
        case (
            Tokens(engine_request_id)
            | PromptLogprobs(engine_request_id)
            | Finished(engine_request_id)
            | Failed(engine_request_id)
        ):
            return engine_request_id.partition(".")[0]
        case ReleaseRuns() | StopRecorder():
            return ""


def _merge_tokens(pieces: Sequence[Tokens]) -> Tokens:
    if len(pieces) == 1:
        return pieces[0]
    token_ids = tuple(token for piece in pieces for token in piece.token_ids)
    logprobs = None
    if pieces[0].logprobs is not None:
        logprobs = tuple(told for piece in pieces for told in piece.logprobs or ())
    return Tokens(pieces[0].request_id, token_ids, logprobs)
