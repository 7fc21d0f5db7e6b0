"""Streams of chat and legacy completions: the responses' event frames, one a choice, become chunks. Pure.

Frames are rendered once, when their events are committed, and shared by all readers of a response. So a chunk
stream decodes them: `ChunkStream` reads the events that make chunks as typed values and skips the others
undecoded. A `ChunkFormat` makes the chunks of an event.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from server.protocol.completions.objects import CompletionUsage
from server.protocol.decode import decode_as
from server.protocol.responses.events import (
    CustomToolCallInputDelta,
    FunctionCallArgumentsDelta,
    OutputItemAdded,
    OutputTextDelta,
    ReasoningTextDelta,
    StreamError,
    TokenIdsEvent,
    split_frame,
)
from server.protocol.responses.items import (
    CustomToolCall,
    FunctionCall,
    Message,
    OutputText,
    Reasoning,
    plain_text,
)
from server.protocol.responses.response import IncompleteDetails, ResponseError, Usage

PARAGRAPH = "\n\n"
"""Between the texts of two messages of one answer."""


class FinalChoice(msgspec.Struct, frozen=True):
    """The fields of a final Response that its choice has."""

    status: str
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[Message | Reasoning | FunctionCall | CustomToolCall]
    usage: Usage | None
    stop_reason: str | int | None = None
    prompt_logprobs: list[Any] | None = None
    cumulative_logprob: float = 0.0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    input_messages: list[dict[str, Any]] = []
    output_messages: list[dict[str, Any]] = []

    @property
    def texts(self) -> list[OutputText]:
        parts = [part for item in self.output if isinstance(item, Message) for part in item.content]
        return [part for part in parts if isinstance(part, OutputText)]

    @property
    def text(self) -> str:
        """The texts of all messages, a paragraph each."""
        messages = (plain_text(item.content) for item in self.output if isinstance(item, Message))
        return PARAGRAPH.join(filter(None, messages))

    @property
    def prompt_token_ids(self) -> list[int]:
        """With `enable_response_messages`, as the next property."""
        return [token for message in self.input_messages for token in message["tokens"]]

    @property
    def output_token_ids(self) -> list[int]:
        return [token for message in self.output_messages for token in message["tokens"]]


class ChoiceStarted(msgspec.Struct, frozen=True):
    """`response.in_progress`, of which no field is read."""


class ChoiceEnded(msgspec.Struct, frozen=True):
    """`response.completed` or `response.incomplete`."""

    response: FinalChoice


class _ChoiceFailed(msgspec.Struct, frozen=True):
    response: FinalChoice


ChoiceEvent = (
    ChoiceStarted
    | ChoiceEnded
    | _ChoiceFailed
    | TokenIdsEvent
    | OutputItemAdded
    | OutputTextDelta
    | ReasoningTextDelta
    | FunctionCallArgumentsDelta
    | CustomToolCallInputDelta
    | StreamError
)
_EVENT_TYPES: dict[bytes, type[ChoiceEvent]] = {
    b"response.in_progress": ChoiceStarted,
    b"response.completed": ChoiceEnded,
    b"response.incomplete": ChoiceEnded,
    b"response.failed": _ChoiceFailed,
    **{
        str(tag).encode(): struct
        for struct in get_args(ChoiceEvent)
        if (tag := struct.__struct_config__.tag) is not None
    },
}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class StreamedChoice:
    """The state of one choice's stream."""

    index: int
    calls: int = 0
    """Tool calls that have begun."""
    message: str = ""
    """The id of the message whose text came last."""
    length: int = 0
    """Characters of its text."""
    final: FinalChoice | None = None
    usage: CompletionUsage = CompletionUsage(0, 0, 0)
    """So far, by the `holdfast:tokens` events of its stream; token ids come with them, too."""
    _new_prompt: list[int] | None = None
    _new_output: list[int] = field(default_factory=list)

    def add_tokens(self, event: TokenIdsEvent) -> None:
        if event.side == "prompt":
            self._new_prompt = event.token_ids
            self.usage = CompletionUsage(len(event.token_ids), 0, len(event.token_ids))
        else:
            self._new_output += event.token_ids
            prompt, output = self.usage.prompt_tokens, self.usage.completion_tokens + len(event.token_ids)
            self.usage = CompletionUsage(prompt, output, prompt + output)

    def take_prompt(self) -> list[int] | UnsetType:
        """The prompt's token ids; UNSET after the first call."""
        prompt, self._new_prompt = self._new_prompt, None
        return UNSET if prompt is None else prompt

    def take_output(self) -> list[int]:
        """The output's token ids since the last call."""
        output, self._new_output = self._new_output, []
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFormat(ABC):
    """The fields that all chunks of a completion share, and the options that shape them."""

    chunk_type: ClassVar[Callable[..., msgspec.Struct]]
    id: str
    created: int
    model: str
    include_usage: bool = False
    """Whether a stream ends with a chunk of usage."""
    continuous_usage: bool = False
    """Whether every chunk has its choice's usage so far."""
    return_token_ids: bool = False
    """Whether token ids are sent beside the text."""

    @property
    def streams_token_ids(self) -> bool:
        """Whether the events of its responses have token ids among them."""
        return self.return_token_ids or self.continuous_usage

    @abstractmethod
    def chunks(self, choice: StreamedChoice, event: ChoiceEvent) -> Iterable[msgspec.Struct]:
        """The chunks that the event makes."""

    def chunk(self, parts: list[Any], usage: CompletionUsage | None, **more: Any) -> msgspec.Struct:
        """The chunk of these parts of choices. `usage` is left out unless the request has `include_usage`."""
        return self.chunk_type(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=parts,
            usage=usage if self.include_usage else UNSET,
            **more,
        )

    @abstractmethod
    def usage(self, finals: Sequence[FinalChoice]) -> CompletionUsage:
        """The usage of a completion."""


class ChunkStream:
    """Rewrites the frames of one completion's responses, one response a choice, to frames of chunks."""

    def __init__(self, shape: ChunkFormat) -> None:
        self._shape = shape
        self._choices: dict[int, StreamedChoice] = {}

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """The chunks' frames for a choice's event frames."""
        choice = self._choices.setdefault(index, StreamedChoice(index))
        return [_data_frame(chunk) for frame in frames for chunk in self._chunks(choice, frame)]

    def end(self) -> list[bytes]:
        """The chunk of usage, if the request has `include_usage`."""
        if not self._shape.include_usage:
            return []
        finals = [choice.final for _, choice in sorted(self._choices.items()) if choice.final]
        return [_data_frame(self._shape.chunk([], self._shape.usage(finals)))]

    def _chunks(self, choice: StreamedChoice, frame: bytes) -> Iterable[msgspec.Struct | dict[str, Any]]:
        kind, data = split_frame(frame)
        if kind not in _EVENT_TYPES:
            return []
        match event := decode_as(data, _EVENT_TYPES[kind]):
            case ChoiceStarted() if self._shape.streams_token_ids:
                return []  # the first chunk has the prompt's token ids, which the next event brings
            case TokenIdsEvent(side=side):
                choice.add_tokens(event)
                return self._shape.chunks(choice, ChoiceStarted()) if side == "prompt" else []
            case _ChoiceFailed(FinalChoice(error=ResponseError(message=message))):
                return [_error_chunk(message, "server_error")]
            case StreamError(code=code, message=message):
                return [_error_chunk(message, code)]
            case ChoiceEnded():
                choice.final = event.response
        return self._shape.chunks(choice, event)


def _error_chunk(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _data_frame(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """A server-sent event without a name, as chunks are."""
    return b"data: " + _encode(value) + b"\n\n"


def failure_message(finals: Sequence[FinalChoice]) -> str | None:
    """The error message of the first failed choice; None if none has failed. It fails the completion."""
    return next((final.error.message for final in finals if final.status == "failed" and final.error), None)


def total_usage(prompts: Iterable[Sequence[FinalChoice]], *, with_reasoning: bool) -> CompletionUsage:
    """The usage of a completion: each prompt once, the output of all of its choices."""
    prompt = cached = output = reasoning = accepted = rejected = 0
    for finals in prompts:
        usages = [final.usage for final in finals if final.usage]
        prompt += max((usage.input_tokens for usage in usages), default=0)
        cached += max((usage.input_tokens_details.cached_tokens for usage in usages), default=0)
        output += sum(usage.output_tokens for usage in usages)
        reasoning += sum(usage.output_tokens_details.reasoning_tokens for usage in usages)
        accepted += sum(final.accepted_prediction_tokens for final in finals)
        rejected += sum(final.rejected_prediction_tokens for final in finals)
    of_prompt = {"cached_tokens": cached, "audio_tokens": 0}
    of_output = {
        "reasoning_tokens": reasoning if with_reasoning else 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
    }
    return CompletionUsage(prompt, output, prompt + output, of_prompt, of_output)
