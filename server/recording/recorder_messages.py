"""The recorder's inbox: messages of the engine, handlers and tools; RunUpdate: what one commit writes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from engine.request import Failed, Finished, Outbound, PromptLogprobs, Tokens
from server.generation.hosted_tools_of_response import ToolResult
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run, RunFacts
from server.protocol.responses.events import Event
from server.protocol.responses.response import CancelReason
from server.store.log_append import NewLogRow

SERVER_ERROR = "server_error"
EVENTS_LOST = "events_lost"
"""The database has lost events that clients have seen, and so has this process."""


@dataclass(frozen=True, slots=True)
class BuildRun:
    """Builds and starts the run of a response that was just accepted. Its engine messages follow."""

    facts: RunFacts
    decoding: Callable[[], DecodingSpec]
    announces: bool = False
    """Whether the run may have events before its first token."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """A run that was rebuilt from its log. Its engine messages follow."""

    run: Run
    starts: bool = True
    """If False, nothing is generated; a message that ends the run follows."""


@dataclass(frozen=True, slots=True)
class FailRun:
    """Ends a run as failed where the engine will send no `Failed`."""

    response_id: UUID
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Ends a run as cancelled where the engine has no request of it."""

    response_id: UUID
    reason: CancelReason | None = None


@dataclass(frozen=True, slots=True)
class ReleaseRuns:
    """Gives up runs without ending them, so that other replicas claim them. None: all background runs."""

    response_ids: frozenset[UUID] | None = None


@dataclass(frozen=True, slots=True)
class StopRecorder:
    """Ends the recorder's thread after everything delivered before."""


@dataclass(frozen=True, slots=True)
class VerifyCommits:
    """Makes the next commit check that all that was acknowledged of late is still stored."""


@dataclass(frozen=True, slots=True)
class CheckOwnership:
    """Isolates runs whose rows seemed not to be this replica's; the commit alone finds out and drops them."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """The result of a call that the server made."""

    response_id: UUID
    index: int
    """The output index of the call's item."""
    outcome: ToolResult


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The next model turn begins. Without `decoding` there is no token left for it, and the run ends."""

    response_id: UUID
    decoding: DecodingSpec | None
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Cancels a run that may be between two turns. During a turn the engine is asked to cancel after it."""

    response_id: UUID
    reason: CancelReason | None = None


RecorderMessage = (
    BuildRun
    | StartRun
    | FailRun
    | CancelRun
    | ReleaseRuns
    | StopRecorder
    | VerifyCommits
    | CheckOwnership
    | ToolCallFinished
    | StartTurn
    | CancelRequested
    | Outbound
)


@dataclass(slots=True, eq=False)
class RunUpdate:
    """One run's part of a commit."""

    run: Run
    events: list[Event] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    released: bool = False
    """The response is given up without an end; another replica claims it."""
    engine_died: bool = False
    """It is released because the engine died, which may be this run's fault. Counts as a death."""
    first_seq: int = field(init=False)
    """The sequence number of the first event."""
    unwritable: bool = False
    """The run could not even be ended with the output that it has; there is nothing to write."""
    cut_short: bool = False
    """The run ends here before its engine request does, which has to be cancelled."""
    log_rows: Sequence[NewLogRow] | None = None
    """The events as rows of the log, once they are encoded."""
    earlier_rows: Sequence[NewLogRow] = ()
    """Rows before the events, which were acknowledged: those that the database has lost are written again."""
    published: bool = False
    """The update ended the run and was published before; it is only stored again."""
    has_gap: bool = False
    """Events before it are lost for good: it can only end as failed, and its log is not folded."""
    tries: int = 0
    """Failed tries to commit it alone."""
    retry_at: float = 0.0
    """When it is tried alone again, in seconds of the committer's clock."""

    def __post_init__(self) -> None:
        self.first_seq = self.run.next_seq

    @property
    def is_last(self) -> bool:
        """The run leaves this replica with this update: it has ended or is released."""
        return self.released or self.run.ending is not None


def coalesce_tokens(messages: Sequence[RecorderMessage]) -> Iterator[RecorderMessage]:
    """Merges consecutive tokens of an engine request into one message, for fewer and longer deltas."""
    waiting: dict[str, list[Tokens]] = {}
    for message in messages:
        if isinstance(message, Tokens):
            key = message.request_id.partition(".")[0]
            if (pieces := waiting.get(key)) is None:
                waiting[key] = [message]
            else:
                pieces.append(message)
            continue
        if isinstance(message, ReleaseRuns):
            yield from (_merge_tokens(waiting.pop(response)) for response in list(waiting))
        elif (response := response_hex_of(message)) in waiting:
            yield _merge_tokens(waiting.pop(response))
        yield message
    yield from map(_merge_tokens, waiting.values())


def response_hex_of(message: RecorderMessage) -> str:
    """The id in hexadecimal of the response that a message is about; empty if there is no single one."""
    match message:
        case Tokens() | PromptLogprobs() | Finished() | Failed():
            return message.request_id.partition(".")[0]
        case BuildRun(facts):
            return facts.id.hex
        case StartRun(run):
            return run.facts.id.hex
        case ReleaseRuns() | StopRecorder() | VerifyCommits() | CheckOwnership():
            return ""
    return message.response_id.hex


def _merge_tokens(pieces: Sequence[Tokens]) -> Tokens:
    if len(pieces) == 1:
        return pieces[0]
    token_ids = tuple([token for piece in pieces for token in piece.token_ids])
    logprobs = None
    if pieces[0].logprobs is not None:
        logprobs = tuple([logprob for piece in pieces for logprob in piece.logprobs or ()])
    return Tokens(pieces[0].request_id, token_ids, logprobs)
