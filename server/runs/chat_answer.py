"""A response told as a chat completion: its final object as choices, its events as chunks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from server.wire.chat import (
    CalledFunction,
    CalledTool,
    ChatCompletion,
    ChatMessage,
    Choice,
    ChoiceLogprobs,
    Chunk,
    ChunkChoice,
    Delta,
    FinishReason,
    TokenLogprob,
    ToolCall,
    Usage,
)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Telling:
    """What all of one completion's objects have in common, and what was asked of them."""

    id: str
    created: int
    model: str
    reasoning: bool = True
    """The model's thinking is told."""
    usage: bool = False
    """A stream ends with a chunk of usage."""
    forced: bool = False
    """A certain function had to be called, which OpenAI's finish reason takes for an ordinary stop."""
    metadata: dict[str, str] | None = None
    """Of a stored completion."""


def completion(
    telling: Telling, finals: Sequence[dict[str, Any]], places: Sequence[int] | None = None
) -> ChatCompletion:
    """The completion whose choices are these final responses, at these places if some are missing."""
    return ChatCompletion(
        id=telling.id,
        created=telling.created,
        model=telling.model,
        choices=[
            _choice(telling, *placed) for placed in zip(places or range(len(finals)), finals, strict=True)
        ],
        usage=total_usage(finals),
        metadata=telling.metadata if telling.metadata is not None else UNSET,
    )


def failure(finals: Sequence[dict[str, Any]]) -> str | None:
    """Why one of the choices has failed; a completion has no such choice."""
    return next((final["error"]["message"] for final in finals if final["status"] == "failed"), None)


def total_usage(finals: Sequence[dict[str, Any]]) -> Usage:
    """The prompt is one for all choices; what they say is added up."""
    told = [final["usage"] for final in finals if final["usage"]]
    prompt = max((usage["input_tokens"] for usage in told), default=0)
    cached = max((usage["input_tokens_details"]["cached_tokens"] for usage in told), default=0)
    output = sum(usage["output_tokens"] for usage in told)
    reasoning = sum(usage["output_tokens_details"]["reasoning_tokens"] for usage in told)
    return Usage(prompt, output, prompt + output, {"cached_tokens": cached}, {"reasoning_tokens": reasoning})


def finish_reason(telling: Telling, final: dict[str, Any]) -> FinishReason:
    if final["status"] == "incomplete" and final["incomplete_details"]["reason"] == "max_output_tokens":
        return "length"
    if any(item["type"] in ("function_call", "custom_tool_call") for item in final["output"]):
        return "stop" if telling.forced else "tool_calls"
    return "stop"


def _choice(telling: Telling, index: int, final: dict[str, Any]) -> Choice:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    logprobs: list[dict[str, Any]] = []
    for item in final["output"]:
        match item["type"]:
            case "message":
                for part in item["content"]:
                    texts.append(part["text"])
                    logprobs += part.get("logprobs", [])
            case "reasoning":
                thoughts += [part["text"] for part in item.get("content", [])]
            case "function_call" | "custom_tool_call":
                calls.append(_whole_call(item))
    thought = "".join(thoughts) if thoughts and telling.reasoning else UNSET
    message = ChatMessage(
        "assistant",
        "".join(texts) if texts and (any(texts) or not calls) else None,
        reasoning_content=thought,
        reasoning=thought,
        tool_calls=calls or UNSET,
    )
    return Choice(index, message, finish_reason(telling, final), _logprobs(logprobs))


def _whole_call(item: dict[str, Any]) -> ToolCall:
    if item["type"] == "function_call":
        return ToolCall(
            id=item["call_id"], type="function", function=CalledFunction(item["name"], item["arguments"])
        )
    return ToolCall(id=item["call_id"], type="custom", custom=CalledTool(item["name"], item["input"]))


def _logprobs(given: Sequence[dict[str, Any]]) -> ChoiceLogprobs | None:
    if not given:
        return None
    return ChoiceLogprobs(
        [
            TokenLogprob(one["token"], one["logprob"], one.get("bytes"), one.get("top_logprobs", []))
            for one in given
        ]
    )


class ChunkStream:
    """Rewrites the events of one completion's responses, each the stream of one choice, as chunks."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._choices: dict[int, _ChoiceState] = {}

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """Server-sent-event frames of chunks for those of events."""
        state = self._choices.setdefault(index, _ChoiceState())
        chunks: list[bytes] = []
        for frame in frames:
            event = msgspec.json.decode(frame[frame.index(b"\ndata: ") + 7 : -2])
            if event["type"] == "response.failed":
                chunks.append(_error_frame(event["response"]["error"]["message"]))
            elif (told := self._chunk_of(state, event)) is not None:
                chunks.append(self._frame([ChunkChoice(index, *told)]))
        return chunks

    def end(self) -> list[bytes]:
        if not self._telling.usage:
            return []
        finals = [state.final for state in self._choices.values() if state.final]
        return [self._frame([], total_usage(finals))]

    def _frame(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        chunk = Chunk(
            id=self._telling.id,
            created=self._telling.created,
            model=self._telling.model,
            choices=choices,
            usage=usage if self._telling.usage else UNSET,
        )
        return b"data: " + _encode(chunk) + b"\n\n"

    def _chunk_of(
        self, state: "_ChoiceState", event: dict[str, Any]
    ) -> tuple[Delta, FinishReason | None, ChoiceLogprobs | None] | None:
        match event["type"]:
            case "response.in_progress":
                return Delta(role="assistant", content=""), None, None
            case "response.output_text.delta":
                return Delta(content=event["delta"]), None, _logprobs(event["logprobs"])
            case "response.reasoning_text.delta" if self._telling.reasoning:
                return Delta(reasoning_content=event["delta"], reasoning=event["delta"]), None, None
            case "response.output_item.added" if (call := state.begin_call(event["item"])) is not None:
                return Delta(tool_calls=[call]), None, None
            case "response.function_call_arguments.delta":
                call = ToolCall(index=state.calls - 1, function=CalledFunction(arguments=event["delta"]))
                return Delta(tool_calls=[call]), None, None
            case "response.custom_tool_call_input.delta":
                call = ToolCall(index=state.calls - 1, custom=CalledTool(input=event["delta"]))
                return Delta(tool_calls=[call]), None, None
            case "response.completed" | "response.incomplete":
                state.final = event["response"]
                return Delta(), finish_reason(self._telling, event["response"]), None
        return None


@dataclass(slots=True)
class _ChoiceState:
    """How far one choice has been told."""

    calls: int = 0
    final: dict[str, Any] | None = None

    def begin_call(self, item: dict[str, Any]) -> ToolCall | None:
        match item["type"]:
            case "function_call":
                self.calls += 1
                function = CalledFunction(item["name"], "")
                return ToolCall(index=self.calls - 1, id=item["call_id"], type="function", function=function)
            case "custom_tool_call":
                self.calls += 1
                custom = CalledTool(item["name"], "")
                return ToolCall(index=self.calls - 1, id=item["call_id"], type="custom", custom=custom)
        return None


def _error_frame(message: str) -> bytes:
    error = {"message": message, "type": "server_error", "param": None, "code": "server_error"}
    return b"data: " + _encode({"error": error}) + b"\n\n"
