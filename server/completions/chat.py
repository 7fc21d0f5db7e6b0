"""Chat Completions: a request as one for each choice; tools, formats, choices, chunks as chats have them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from server.completions.chunk_stream import (
    PARAGRAPH,
    ChoiceEnded,
    ChoiceEvent,
    ChoiceStarted,
    ChunkFormat,
    FinalChoice,
    StreamedChoice,
    total_usage,
)
from server.completions.shared_parameters import choice_parameters, output_grammar, refuse_unsupported
from server.errors import InvalidRequest
from server.prompting.engine_request import LOGPROBS
from server.protocol import ids
from server.protocol.completions import objects
from server.protocol.completions.chat_messages import answer_role, echo_text, tool_call
from server.protocol.completions.requests import ChatRequest, ChoiceRequest
from server.protocol.error_object import invalid_value, unsupported_parameter
from server.protocol.responses.events import (
    CustomToolCallInputDelta,
    FunctionCallArgumentsDelta,
    OutputItemAdded,
    OutputTextDelta,
    ReasoningTextDelta,
)
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import (
    CustomToolCall,
    FunctionCall,
    Logprob,
    Reasoning,
)
from server.protocol.responses.request import ReasoningOptions, TextFormat, TextOptions

_SAME = (
    *("metadata", "top_logprobs", "parallel_tool_calls", "chat_template", "chat_template_kwargs"),
    *("documents", "add_generation_prompt", "continue_final_message", "safety_identifier"),
    *("prompt_cache_key", "truncate_prompt_tokens", "truncation_side"),
)
"""Parameters that a response has unchanged, beside those of all completions."""
_TOOL_FORM = "A tool is {type: function, function: {…}} or {type: custom, custom: {…}}."


def validate_chat_request(request: ChatRequest) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    refuse_unsupported(request)
    if request.modalities and request.modalities != ["text"]:
        raise unsupported_parameter("This model writes text only.", "modalities")
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidRequest(
            "A message is continued, or a new turn begins: give one of the two.",
            param="continue_final_message",
        )
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise InvalidRequest(
            "Setting 'max_tokens' and 'max_completion_tokens' to different values is not supported: give one "
            "of them.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    # Frameworks send `tools: []` with "auto" for an agent without tools, and OpenAI accepts that.
    without_tools = (None, "none") if request.tools is None else (None, "none", "auto")
    if not request.tools and request.tool_choice not in without_tools:
        raise InvalidRequest("tool_choice is allowed where tools are given.", param="tool_choice")


def as_response_request(request: ChatRequest, choice: int) -> ChoiceRequest:
    """The request for the response that is choice number `choice`. Raises ApiError."""
    hides_tools = request.exclude_tools_when_tool_choice_none and request.tool_choice == "none"
    return ChoiceRequest(
        **choice_parameters(request, choice, request.prompt_logprobs),
        **{name: getattr(request, name) for name in _SAME},
        choice=choice,
        include_reasoning=request.include_reasoning is not False,
        store=bool(request.store),
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        include=[LOGPROBS] if request.logprobs else None,
        tools=[_tool(tool, index) for index, tool in enumerate(() if hides_tools else request.tools or ())],
        tool_choice=_tool_choice(request.tool_choice),
        reasoning=ReasoningOptions(request.reasoning_effort) if request.reasoning_effort else None,
        text=_text(request),
        structured_outputs=output_grammar(request, "structured_outputs"),
        add_special_tokens=bool(request.add_special_tokens),
        prediction=request.prediction.text if request.prediction else "",
    )


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    """A chat's tool in the flat form of the Responses API. Raises InvalidRequest."""
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise invalid_value(_TOOL_FORM, f"tools[{index}].type")
    inner = tool.get(kind)
    if not isinstance(inner, dict):
        raise InvalidRequest(_TOOL_FORM, f"tools[{index}].{kind}", "invalid_type")
    flat = {**inner, "type": kind}
    grammar = flat.get("format")
    if kind == "custom" and isinstance(grammar, dict) and isinstance(grammar.get("grammar"), dict):
        flat["format"] = {"type": "grammar", **grammar["grammar"]}
    return flat


def _tool_choice(choice: Any) -> Any:
    """The choice in the flat form of the Responses API: the inverse of `chat_choice`."""
    match choice:
        case {"type": "function" | "custom" as kind} if isinstance(inner := choice.get(kind), dict):
            return {"type": kind, "name": inner["name"]} if isinstance(inner.get("name"), str) else choice
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return {"type": "allowed_tools", "mode": mode, "tools": [_tool_choice(tool) for tool in tools]}
    return choice


def _text(request: ChatRequest) -> TextOptions | None:
    form = request.response_format
    if form is None or form.type == "structural_tag":
        return TextOptions(verbosity=request.verbosity) if request.verbosity else None
    if form.type != "json_schema":
        return TextOptions(TextFormat(form.type), request.verbosity)
    schema = form.json_schema
    assert schema is not None
    return TextOptions(
        TextFormat("json_schema", schema.name or "answer", schema.description, schema.schema, schema.strict),
        request.verbosity,
    )


def chat_tool(flat: dict[str, Any]) -> dict[str, Any]:
    """A response's tool in the nested form of Chat Completions: the inverse of `_tool`."""
    kind = flat["type"]
    inner = {name: value for name, value in flat.items() if name != "type"}
    match inner.get("format"):
        case {"type": "grammar", **grammar}:
            inner["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: inner}


def chat_choice(flat: Any) -> Any:
    """A response's tool choice in the form of Chat Completions."""
    match flat:
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            tools = [chat_choice(tool) for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        case {"type": "function" | "custom" as kind, "name": name}:
            return {"type": kind, kind: {"name": name}}
        case _:
            return flat


def chat_format(flat: dict[str, Any]) -> dict[str, Any] | None:
    """A response's text format as a chat's `response_format`, which is null for text."""
    match flat:
        case {"type": "text"}:
            return None
        case {"type": "json_schema", **schema}:
            return {"type": "json_schema", "json_schema": schema}
        case _:
            return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat(ChunkFormat):
    chunk_type = objects.Chunk
    include_reasoning: bool = True
    role: str = "assistant"
    """The answer's role: the last message's where the model continues that message."""
    echo: str = ""
    """The text before the answer, with `echo`."""
    function_required: bool = False
    """Whether tool_choice names a function: OpenAI's finish reason of such a call is `stop`."""
    metadata: dict[str, str] | None = None
    """Of a stored completion; None of others."""

    def chunks(self, choice: StreamedChoice, event: ChoiceEvent) -> Iterator[msgspec.Struct]:
        final = event.response if isinstance(event, ChoiceEnded) else None
        for delta in self._deltas(choice, event):
            part = objects.ChunkChoice(
                choice.index,
                delta,
                finish_reason(self, final) if final else None,
                _logprobs(event.logprobs) if isinstance(event, OutputTextDelta) else None,
                choice.take_output() if self.return_token_ids else UNSET,
                final.stop_reason if final else UNSET,
            )
            prompt = choice.take_prompt() if self.return_token_ids else UNSET
            usage = choice.usage if self.continuous_usage else None
            yield self.chunk([part], usage, prompt_token_ids=prompt)

    def _deltas(self, choice: StreamedChoice, event: ChoiceEvent) -> list[objects.Delta]:
        match event:
            case ChoiceStarted():
                begun = [objects.Delta(role=self.role, content="")]
                return [*begun, objects.Delta(content=self.echo)] if self.echo else begun
            case OutputTextDelta(item_id=message, delta=text):
                before, choice.message = choice.message, message
                return [objects.Delta(content=PARAGRAPH + text if before not in ("", message) else text)]
            case ReasoningTextDelta(delta=text) if self.include_reasoning:
                return [objects.Delta(reasoning_content=text, reasoning=text)]
            case OutputItemAdded(item=FunctionCall() | CustomToolCall() as item):
                choice.calls += 1
                return [objects.Delta(tool_calls=[replace(tool_call(item), index=choice.calls - 1)])]
            case FunctionCallArgumentsDelta(delta=text):
                call = objects.ToolCall(
                    index=choice.calls - 1, function=objects.CalledFunction(arguments=text)
                )
                return [objects.Delta(tool_calls=[call])]
            case CustomToolCallInputDelta(delta=text):
                call = objects.ToolCall(index=choice.calls - 1, custom=objects.CalledTool(input=text))
                return [objects.Delta(tool_calls=[call])]
            case ChoiceEnded():
                return [objects.Delta()]
        return []

    def usage(self, finals: Sequence[FinalChoice]) -> objects.CompletionUsage:
        return total_usage([finals], with_reasoning=True)


def format_of(request: ChoiceRequest, first: UUID, messages: Sequence[InputItem]) -> ChatFormat:
    role = answer_role(messages, request)
    choice = request.tool_choice
    return ChatFormat(
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
    shape: ChatFormat, finals: Sequence[FinalChoice], indexes: Sequence[int] | None = None
) -> objects.ChatCompletion:
    """The completion of these final responses. `indexes` are the choices' own where some were deleted."""
    return objects.ChatCompletion(
        id=shape.id,
        created=shape.created,
        model=shape.model,
        choices=[
            _choice(shape, *indexed) for indexed in zip(indexes or range(len(finals)), finals, strict=True)
        ],
        usage=shape.usage(finals),
        metadata=shape.metadata if shape.metadata is not None else UNSET,
        prompt_token_ids=finals[0].prompt_token_ids if shape.return_token_ids else None,
        prompt_logprobs=finals[0].prompt_logprobs,
    )


def finish_reason(shape: ChatFormat, final: FinalChoice) -> objects.FinishReason:
    details = final.incomplete_details
    if final.status == "incomplete" and details is not None and details.reason == "max_output_tokens":
        return "length"
    if any(isinstance(item, FunctionCall | CustomToolCall) for item in final.output):
        return "stop" if shape.function_required else "tool_calls"
    return "stop"


def _choice(shape: ChatFormat, index: int, final: FinalChoice) -> objects.Choice:
    texts = final.texts
    thoughts = [part for item in final.output if isinstance(item, Reasoning) for part in item.content or ()]
    calls = [tool_call(item) for item in final.output if isinstance(item, FunctionCall | CustomToolCall)]
    reasoning = "".join(part.text for part in thoughts) if thoughts and shape.include_reasoning else None
    text = shape.echo + final.text
    message = objects.ChatMessage(
        shape.role,
        text if text or (texts and not calls) else None,
        reasoning_content=UNSET if reasoning is None else reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )
    return objects.Choice(
        index,
        message,
        finish_reason(shape, final),
        final.stop_reason,
        _logprobs([logprob for part in texts for logprob in part.logprobs]),
        final.output_token_ids if shape.return_token_ids else None,
    )


def _logprobs(logprobs: Sequence[Logprob]) -> objects.ChoiceLogprobs | None:
    if not logprobs:
        return None
    content = [
        objects.TokenLogprob(item.token, item.logprob, item.bytes, msgspec.to_builtins(item.top_logprobs))
        for item in logprobs
    ]
    return objects.ChoiceLogprobs(content)
