"""The Open Responses specification's schemas, as strict as its compliance suite: what is sent must fit them.

A field without a default must be there; one whose type has no None must not be null, even if it may be
absent.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Effort = Literal["none", "low", "medium", "high", "xhigh"]


class Strict(BaseModel):
    """Integers are integers, and nothing becomes something else to fit."""

    model_config = ConfigDict(strict=True, protected_namespaces=())


class UrlCitation(Strict):
    type: Literal["url_citation"]
    url: str
    title: str
    start_index: int
    end_index: int


class TopLogprob(Strict):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(Strict):
    type: Literal["output_text"]
    text: str
    annotations: list[UrlCitation]
    logprobs: list[Logprob] = []


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: str


class PlainText(Strict):
    type: Literal["input_text", "text", "summary_text", "reasoning_text"]
    text: str


class InputImage(Strict):
    type: Literal["input_image"]
    image_url: str | None
    detail: Literal["low", "high", "auto"]


class InputFile(Strict):
    type: Literal["input_file"]
    filename: str = ""
    file_url: str = ""


Part = Annotated[OutputText | Refusal | PlainText | InputImage | InputFile, Field(discriminator="type")]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Message(Strict):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]
    phase: Literal["commentary", "final_answer"] = "final_answer"


class FunctionCall(Strict):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutput(Strict):
    type: Literal["function_call_output"]
    id: str
    call_id: str
    output: str | list[Part]
    status: ItemStatus


class Reasoning(Strict):
    type: Literal["reasoning"]
    id: str
    summary: list[Part]
    content: list[Part] = []
    encrypted_content: str = ""


class Compaction(Strict):
    type: Literal["compaction"]
    id: str
    encrypted_content: str


Item = Annotated[
    Message | FunctionCall | FunctionCallOutput | Reasoning | Compaction, Field(discriminator="type")
]


class FunctionTool(Strict):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class NamedFunction(Strict):
    type: Literal["function"]
    name: str


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    tools: list[NamedFunction]
    mode: Literal["none", "auto", "required"]


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class JsonSchema(Strict):
    type: Literal["json_schema"]
    name: str
    description: str | None
    schema_: Any = Field(alias="schema")
    strict: bool


class TextField(Strict):
    format: Annotated[PlainFormat | JsonSchema, Field(discriminator="type")]
    verbosity: Literal["low", "medium", "high"] = "medium"


class ReasoningField(Strict):
    effort: Effort | None
    summary: Literal["concise", "detailed", "auto"] | None


class CachedTokens(Strict):
    cached_tokens: int


class ReasoningTokens(Strict):
    reasoning_tokens: int


class Usage(Strict):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class ErrorField(Strict):
    code: str
    message: str


class IncompleteDetails(Strict):
    reason: str


class Response(Strict):
    """ResponseResource."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: ErrorField | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: TextField
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ReasoningField | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class Compacted(Strict):
    """CompactResource."""

    id: str
    object: Literal["response.compaction"]
    output: list[Item]
    created_at: int
    usage: Usage


class Event(Strict):
    sequence_number: int


class Lifecycle(Event):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]
    response: Response


class ItemEvent(Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item | None


class InItem(Event):
    item_id: str
    output_index: int


class InPart(InItem):
    content_index: int


class PartEvent(InPart):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Part


class TextDelta(InPart):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[Logprob] = []


class TextDone(InPart):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[Logprob] = []


class ReasoningDelta(InPart):
    type: Literal["response.reasoning.delta"]
    delta: str


class ReasoningDone(InPart):
    type: Literal["response.reasoning.done"]
    text: str


class RefusalDelta(InPart):
    type: Literal["response.refusal.delta"]
    delta: str


class RefusalDone(InPart):
    type: Literal["response.refusal.done"]
    refusal: str


class ArgumentsDelta(InItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(InItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


class InSummary(InItem):
    summary_index: int


class SummaryPart(InSummary):
    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    part: Part


class SummaryDelta(InSummary):
    type: Literal["response.reasoning_summary_text.delta"]
    delta: str


class SummaryDone(InSummary):
    type: Literal["response.reasoning_summary_text.done"]
    text: str


class AnnotationAdded(InPart):
    type: Literal["response.output_text.annotation.added"]
    annotation_index: int
    annotation: UrlCitation | None


class NestedError(Strict):
    type: str
    code: str | None
    message: str
    param: str | None


class ErrorEvent(Event):
    type: Literal["error"]
    error: NestedError


AnyEvent = Annotated[
    Lifecycle
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | RefusalDelta
    | RefusalDone
    | ArgumentsDelta
    | ArgumentsDone
    | SummaryPart
    | SummaryDelta
    | SummaryDone
    | AnnotationAdded
    | ErrorEvent,
    Field(discriminator="type"),
]
_EVENT: TypeAdapter[Any] = TypeAdapter(AnyEvent)


def check_response(body: object) -> Response:
    """The response, if it is one of the specification's. Raises pydantic.ValidationError."""
    return Response.model_validate_json(json.dumps(body))


def check_compacted(body: object) -> Compacted:
    return Compacted.model_validate_json(json.dumps(body))


def check_events(events: list[dict[str, Any]]) -> Response:
    """What the last event says, if all are the specification's and the last one ends a response."""
    checked = [_EVENT.validate_json(json.dumps(event)) for event in events]
    assert checked, "no event at all"
    last = checked[-1]
    assert isinstance(last, Lifecycle)
    assert last.type in ("response.completed", "response.failed", "response.incomplete")
    assert [event.sequence_number for event in checked] == list(range(len(checked)))
    return last.response
