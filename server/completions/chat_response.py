"""A response told as a chat completion: its final object as choices, its events as chunks. Pure."""

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
from server.protocol.completions.chat import (
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
)
from server.protocol.completions.chat_messages import answer_role, echo_text
from server.protocol.completions.shared_parameters import ChoiceRequest, CompletionUsage
from server.protocol.responses.input import InputItem


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """What all of one completion's objects have in common, and what was asked of them."""

    id: str
    created: int
    model: str
    include_reasoning: bool = True
    """The model's thinking is told."""
    role: str = "assistant"
    """Of the answer: that of the last message, where the model goes on without a turn of its own."""
    echo: str = ""
    """What comes before the answer in its text."""
    include_usage: bool = False
    """A stream ends with a chunk of usage."""
    continuous_usage: bool = False
    """Each chunk before it tells what its choice has used."""
    return_token_ids: bool = False
    """Tokens are told beside what they say."""
    function_required: bool = False
    """A certain function had to be called, which OpenAI's finish reason takes for an ordinary stop."""
    metadata: dict[str, str] | None = None
    """Of a stored completion."""


def format_of(request: ChoiceRequest, first: UUID, given: Sequence[InputItem]) -> CompletionFormat:
    """How the completion is told whose first choice this request asks for, after these messages."""
    role = answer_role(given, request)
    choice = request.tool_choice
    return CompletionFormat(
        id=ids.completion_id(first),
        created=ids.unix_seconds(first),
        model=request.model,
        include_reasoning=request.include_reasoning,
        role=role,
        echo=echo_text(given, role) if request.echo else "",
        return_token_ids=request.return_token_ids,
        function_required=isinstance(choice, dict) and choice.get("type") == "function",
        metadata=(request.metadata or {}) if request.store else None,
    )


def chat_completion(
    telling: CompletionFormat, finals: Sequence[dict[str, Any]], places: Sequence[int] | None = None
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
        prompt_token_ids=dump_token_ids(finals[0], "input_messages") if telling.return_token_ids else None,
        prompt_logprobs=finals[0].get("prompt_logprobs"),
    )


def finish_reason(telling: CompletionFormat, final: dict[str, Any]) -> FinishReason:
    if final["status"] == "incomplete" and final["incomplete_details"]["reason"] == "max_output_tokens":
        return "length"
    if any(item["type"] in ("function_call", "custom_tool_call") for item in final["output"]):
        return "stop" if telling.function_required else "tool_calls"
    return "stop"


def _choice(telling: CompletionFormat, index: int, final: dict[str, Any]) -> Choice:
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
    thought = "".join(thoughts) if thoughts and telling.include_reasoning else None
    text = telling.echo + "".join(texts)
    message = ChatMessage(
        telling.role,
        text if text or (texts and not calls) else None,
        reasoning_content=UNSET if thought is None else thought,
        reasoning=thought,
        tool_calls=calls or UNSET,
    )
    token_ids = dump_token_ids(final, "output_messages") if telling.return_token_ids else None
    return Choice(
        index,
        message,
        finish_reason(telling, final),
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

    def __init__(self, telling: CompletionFormat) -> None:
        self._format = telling
        self._choices: dict[int, _ChoiceState] = {}

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """Server-sent-event frames of chunks for those of events."""
        state = self._choices.setdefault(index, _ChoiceState())
        chunks: list[bytes] = []
        for frame in frames:
            event = parse_event(frame)
            if event["type"] == "response.failed":
                chunks.append(error_frame(event["response"]["error"]["message"]))
            elif event["type"] == "holdfast:tokens":
                state.tokens.add_event(event)
            elif (told := self._delta_of(state, event)) is not None:
                chunks.append(self._encode_choice(state, index, *told))
                if self._format.echo and event["type"] == "response.in_progress":
                    chunks.append(self._encode_choice(state, index, Delta(content=self._format.echo)))
        return chunks

    def _encode_choice(
        self,
        state: "_ChoiceState",
        index: int,
        delta: Delta,
        finish: FinishReason | None = None,
        logprobs: ChoiceLogprobs | None = None,
    ) -> bytes:
        """A chunk of one choice, with the tokens that have come since its last one."""
        prompt, came = state.tokens.take_new()
        usage = state.tokens.usage if self._format.continuous_usage else None
        stop = state.final.get("stop_reason") if state.final is not None else UNSET
        if not self._format.return_token_ids:
            return self._encode_chunk([ChunkChoice(index, delta, finish, logprobs, UNSET, stop)], usage)
        return self._encode_chunk([ChunkChoice(index, delta, finish, logprobs, came, stop)], usage, prompt)

    def end(self) -> list[bytes]:
        if not self._format.include_usage:
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
            id=self._format.id,
            created=self._format.created,
            model=self._format.model,
            choices=choices,
            usage=usage if self._format.include_usage else UNSET,
            prompt_token_ids=prompt,
        )
        return data_frame(chunk)

    def _delta_of(
        self, state: "_ChoiceState", event: dict[str, Any]
    ) -> tuple[Delta, FinishReason | None, ChoiceLogprobs | None] | None:
        match event["type"]:
            case "response.in_progress":
                return Delta(role=self._format.role, content=""), None, None
            case "response.output_text.delta":
                return Delta(content=event["delta"]), None, _logprobs(event["logprobs"])
            case "response.reasoning_text.delta" if self._format.include_reasoning:
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
                return Delta(), finish_reason(self._format, event["response"]), None
        return None


@dataclass(slots=True)
class _ChoiceState:
    """How far one choice has been told."""

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
