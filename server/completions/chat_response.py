"""Responses as a chat completion: final objects as choices, stream events as chunks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from server.completions.chunk_stream import (
    ChoiceTokens,
    data_frame,
    dump_token_ids,
    error_frame,
    parse_event,
    total_usage,
)
from server.protocol import ids
from server.protocol.completions.chat_messages import answer_role, echo_text
from server.protocol.completions.objects import (
    CalledFunction,
    CalledTool,
    ChatCompletion,
    ChatMessage,
    Choice,
    ChoiceLogprobs,
    Chunk,
    ChunkChoice,
    CompletionUsage,
    Delta,
    FinishReason,
    TokenLogprob,
    ToolCall,
)
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses.input import InputItem


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """The fields that all chunks of a completion share, and the options that shape them."""

    id: str
    created: int
    model: str
    include_reasoning: bool = True
    """Whether reasoning is sent."""
    role: str = "assistant"
    """Of the answer: the last message's role where the model continues that message."""
    echo: str = ""
    """The text before the answer, with `echo`."""
    include_usage: bool = False
    """Whether a stream ends with a chunk of usage."""
    continuous_usage: bool = False
    """Whether every chunk has its choice's usage so far."""
    return_token_ids: bool = False
    """Whether token ids are sent beside the text."""
    function_required: bool = False
    """Whether tool_choice names a function: OpenAI's finish reason of such a call is `stop`."""
    metadata: dict[str, str] | None = None
    """Of a stored completion; None of others."""


def format_of(request: ChoiceRequest, first: UUID, messages: Sequence[InputItem]) -> CompletionFormat:
    """The format of the completion whose first choice is the response `first`."""
    role = answer_role(messages, request)
    choice = request.tool_choice
    return CompletionFormat(
        id=ids.completion_id(first),
        created=ids.unix_seconds(first),
        model=request.model,
        include_reasoning=request.include_reasoning,
        role=role,
        echo=echo_text(messages, role) if request.echo else "",
        return_token_ids=request.return_token_ids,
        function_required=isinstance(choice, dict) and choice.get("type") == "function",
        metadata=(request.metadata or {}) if request.store else None,
    )


def chat_completion(
    shape: CompletionFormat,
    finals: Sequence[dict[str, Any]],
    indexes: Sequence[int] | None = None,
) -> ChatCompletion:
    """The completion of these final responses. `indexes` are the choices' own where some were deleted."""
    return ChatCompletion(
        id=shape.id,
        created=shape.created,
        model=shape.model,
        choices=[
            _choice(shape, *indexed) for indexed in zip(indexes or range(len(finals)), finals, strict=True)
        ],
        usage=total_usage(finals),
        metadata=shape.metadata if shape.metadata is not None else UNSET,
        prompt_token_ids=dump_token_ids(finals[0], "input_messages") if shape.return_token_ids else None,
        prompt_logprobs=finals[0].get("prompt_logprobs"),
    )


def finish_reason(shape: CompletionFormat, final: dict[str, Any]) -> FinishReason:
    if final["status"] == "incomplete" and final["incomplete_details"]["reason"] == "max_output_tokens":
        return "length"
    if any(item["type"] in ("function_call", "custom_tool_call") for item in final["output"]):
        return "stop" if shape.function_required else "tool_calls"
    return "stop"


def _choice(shape: CompletionFormat, index: int, final: dict[str, Any]) -> Choice:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    logprobs: list[dict[str, Any]] = []
    for item in final["output"]:
        match item["type"]:
            case "message":
                for part in item["content"]:
                    texts.append(part["text"])
                    logprobs += part.get("logprobs", [])
            case "reasoning":
                reasoning += [part["text"] for part in item.get("content", [])]
            case "function_call" | "custom_tool_call":
                calls.append(_whole_call(item))
    reasoning_text = "".join(reasoning) if reasoning and shape.include_reasoning else None
    text = shape.echo + "".join(texts)
    message = ChatMessage(
        shape.role,
        text if text or (texts and not calls) else None,
        reasoning_content=UNSET if reasoning_text is None else reasoning_text,
        reasoning=reasoning_text,
        tool_calls=calls or UNSET,
    )
    token_ids = dump_token_ids(final, "output_messages") if shape.return_token_ids else None
    return Choice(
        index,
        message,
        finish_reason(shape, final),
        final.get("stop_reason"),
        _logprobs(logprobs),
        token_ids,
    )


def _whole_call(item: dict[str, Any]) -> ToolCall:
    if item["type"] == "function_call":
        return ToolCall(
            id=item["call_id"], type="function", function=CalledFunction(item["name"], item["arguments"])
        )
    return ToolCall(id=item["call_id"], type="custom", custom=CalledTool(item["name"], item["input"]))


def _logprobs(logprobs: Sequence[dict[str, Any]]) -> ChoiceLogprobs | None:
    if not logprobs:
        return None
    return ChoiceLogprobs(
        [
            TokenLogprob(one["token"], one["logprob"], one.get("bytes"), one.get("top_logprobs", []))
            for one in logprobs
        ]
    )


class ChunkStream:
    """Turns the events of one completion's responses, one response a choice, into chunks."""

    def __init__(self, shape: CompletionFormat) -> None:
        self._shape = shape
        self._choices: dict[int, _ChoiceState] = {}

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """The chunks' frames for a choice's event frames."""
        state = self._choices.setdefault(index, _ChoiceState())
        chunks: list[bytes] = []
        for frame in frames:
            event = parse_event(frame)
            if event["type"] == "response.failed":
                chunks.append(error_frame(event["response"]["error"]["message"]))
            elif event["type"] == "holdfast:tokens":
                state.tokens.add_event(event)
            elif (update := self._delta_of(state, event)) is not None:
                chunks.append(self._encode_choice(state, index, *update))
                if self._shape.echo and event["type"] == "response.in_progress":
                    chunks.append(self._encode_choice(state, index, Delta(content=self._shape.echo)))
        return chunks

    def _encode_choice(
        self,
        state: "_ChoiceState",
        index: int,
        delta: Delta,
        finish: FinishReason | None = None,
        logprobs: ChoiceLogprobs | None = None,
    ) -> bytes:
        """A chunk of one choice, with the token ids since its last one."""
        prompt, output = state.tokens.take_new()
        usage = state.tokens.usage if self._shape.continuous_usage else None
        stop = state.final.get("stop_reason") if state.final is not None else UNSET
        if not self._shape.return_token_ids:
            return self._encode_chunk([ChunkChoice(index, delta, finish, logprobs, UNSET, stop)], usage)
        return self._encode_chunk([ChunkChoice(index, delta, finish, logprobs, output, stop)], usage, prompt)

    def end(self) -> list[bytes]:
        if not self._shape.include_usage:
            return []
        finals = [state.final for state in self._choices.values() if state.final]
        return [self._encode_chunk([], total_usage(finals))]

    def _encode_chunk(
        self,
        choices: list[ChunkChoice],
        usage: CompletionUsage | None = None,
        prompt: list[int] | msgspec.UnsetType = UNSET,
    ) -> bytes:
        chunk = Chunk(
            id=self._shape.id,
            created=self._shape.created,
            model=self._shape.model,
            choices=choices,
            usage=usage if self._shape.include_usage else UNSET,
            prompt_token_ids=prompt,
        )
        return data_frame(chunk)

    def _delta_of(
        self, state: "_ChoiceState", event: dict[str, Any]
    ) -> tuple[Delta, FinishReason | None, ChoiceLogprobs | None] | None:
        match event["type"]:
            case "response.in_progress":
                return Delta(role=self._shape.role, content=""), None, None
            case "response.output_text.delta":
                return Delta(content=event["delta"]), None, _logprobs(event["logprobs"])
            case "response.reasoning_text.delta" if self._shape.include_reasoning:
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
                return Delta(), finish_reason(self._shape, event["response"]), None
        return None


@dataclass(slots=True)
class _ChoiceState:
    """The state of one choice's stream."""

    calls: int = 0
    final: dict[str, Any] | None = None
    tokens: ChoiceTokens = field(default_factory=ChoiceTokens)

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
