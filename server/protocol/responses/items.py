"""Items of conversations: messages, reasoning, calls, outputs, tools, settings; content parts; pictures."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from server.protocol.decode import decode_as
from server.protocol.input_files import file_text
from server.protocol.responses.request import Effort

Role = Literal["user", "assistant", "system", "developer"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
MAX_TEXT = 10_485_760
"""Characters in one text, the Open Responses specification's limit."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Detail = Literal["auto", "low", "high", "original"]


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class Logprob(msgspec.Struct, frozen=True):
    """The log probability of an output token and of the most likely alternatives."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class _Part(msgspec.Struct, frozen=True, tag_field="type"): ...


class InputText(_Part, frozen=True, tag="input_text"):
    text: Text


class InputImage(_Part, frozen=True, tag="input_image"):
    """A picture, in a data URL or at an address. `content` is the server's own: where the bytes are, unless
    `image_url` is a data URL. It is a data URL of what was fetched, or as stored "sha256:" and 64 hex digits,
    with a null `image_url` unless that is an address.
    """

    image_url: str | None = None
    file_id: str | None = None
    detail: Detail = "auto"
    content: str | UnsetType = UNSET

    @property
    def source(self) -> str | None:
        """`content`, or `image_url` where that is all there is."""
        return self.image_url if isinstance(self.content, UnsetType) else self.content


class PreparedImage(InputImage, frozen=True, tag="input_image"):
    """A picture that goes into the prompt of a model that reads pictures. Neither stored nor sent."""

    data: bytes = b""
    """The PNG that the engine gets."""
    digest: bytes = b""
    """SHA-256 of `data`."""
    text: str = ""
    """The picture's placeholder in the prompt's text; see `engine.request.ImageText`."""
    tokens: int = 0


class InputFile(_Part, frozen=True, tag="input_file"):
    """A text file, whose text goes into the prompt. `file_data` is a data URL or base64."""

    filename: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET


class OutputText(_Part, frozen=True, tag="output_text"):
    text: Text
    annotations: list[dict[str, Any]] = []
    logprobs: list[Logprob] = []


class Refusal(_Part, frozen=True, tag="refusal"):
    refusal: Text


ContentPart = InputText | InputImage | InputFile | OutputText | Refusal


class ReasoningText(_Part, frozen=True, tag="reasoning_text"):
    text: Text


class SummaryText(_Part, frozen=True, tag="summary_text"):
    text: Text


class _Item(msgspec.Struct, frozen=True, tag_field="type"):
    id: str
    status: ItemStatus


class Message(_Item, frozen=True, tag="message"):
    """A message of any role. `phase` is stored and returned unchanged."""

    role: Role
    content: list[ContentPart]
    phase: str | UnsetType = UNSET


class Reasoning(_Item, frozen=True, tag="reasoning"):
    """A model's reasoning."""

    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class DirectCaller(msgspec.Struct, frozen=True, tag_field="type", tag="direct"):
    """The model itself."""


class ProgramCaller(msgspec.Struct, frozen=True, tag_field="type", tag="program"):
    """A program that the model has written."""

    caller_id: str


Caller = DirectCaller | ProgramCaller


class FunctionCall(_Item, frozen=True, tag="function_call"):
    """A call of a function tool. `caller` and `async` are stored and returned unchanged."""

    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    is_async: bool | UnsetType = msgspec.field(default=UNSET, name="async")


class FunctionCallOutput(_Item, frozen=True, tag="function_call_output"):
    """The output of a function call, or without a `call_id` what the function `name` says unasked."""

    call_id: str | None
    output: str | list[ContentPart]
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET


class CustomToolCall(_Item, frozen=True, tag="custom_tool_call"):
    """A call of a custom tool, whose input is free text."""

    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    is_async: bool | UnsetType = msgspec.field(default=UNSET, name="async")


class CustomToolCallOutput(_Item, frozen=True, tag="custom_tool_call_output"):
    """The output of a custom tool call."""

    call_id: str
    output: str | list[ContentPart]
    caller: Caller | UnsetType = UNSET


class Compaction(_Item, frozen=True, tag="compaction"):
    """A compacted conversation, encrypted: clients send it back but cannot read it."""

    encrypted_content: str


CallStatus = Literal["in_progress", "completed", "incomplete", "calling", "failed"]


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as an MCP server describes it."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}
    annotations: dict[str, Any] | None = None

    @property
    def only_reads(self) -> bool:
        """The tool declares `readOnlyHint`."""
        return bool((self.annotations or {}).get("readOnlyHint"))

    @property
    def repeatable(self) -> bool:
        """The tool declares itself read-only or idempotent, so that a call may be repeated after a crash."""
        return self.only_reads or bool((self.annotations or {}).get("idempotentHint"))


class CompletedItem(msgspec.Struct, frozen=True, tag_field="type"):
    id: str

    @property
    def status(self) -> Literal["completed"]:
        """The status in the item's row; OpenAI's items of these types have none."""
        return "completed"


class AdditionalTools(CompletedItem, frozen=True, tag="additional_tools"):
    """Tools that the conversation has from this item on."""

    tools: list[dict[str, Any]]
    """The tools as declared; tools of supported types with all of their fields."""
    role: Literal["developer"] = "developer"


class ReasoningUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: Effort | UnsetType | None = UNSET
    """None is the model's default."""


class ConfigurationUpdate(CompletedItem, frozen=True, tag="configuration_update"):
    """Settings that the conversation has from this item on."""

    reasoning: ReasoningUpdate | UnsetType = UNSET
    text: dict[str, Any] | UnsetType = UNSET
    """`{"format": …}`, a `TextFormat`."""


SettingsItem = AdditionalTools | ConfigurationUpdate


class McpListTools(CompletedItem, frozen=True, tag="mcp_list_tools"):
    """The tools of an MCP server, or the error of listing them."""

    server_label: str
    tools: list[ListedTool] = msgspec.field(default_factory=list)
    error: str | None = None


class McpError(msgspec.Struct, frozen=True):
    """The error of a call, from the tool, the protocol or the HTTP connection."""

    type: Literal["mcp_tool_execution_error", "mcp_protocol_error", "http_error"]
    content: list[dict[str, Any]] | UnsetType = UNSET
    code: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class McpCall(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_call"):
    """A call of an MCP server's tool, with its output or error."""

    id: str
    status: CallStatus
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpError | str | None = None
    """A string only in items that clients replay from earlier versions of OpenAI's API."""
    approval_request_id: str | None = None


class McpApprovalRequest(CompletedItem, frozen=True, tag="mcp_approval_request"):
    """A call that waits for the client's approval."""

    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(CompletedItem, frozen=True, tag="mcp_approval_response"):
    """The client's answer to an approval request."""

    approval_request_id: str
    approve: bool
    reason: str | None = None


class CodeInterpreterCall(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="code_interpreter_call"
):
    """Code executed by a tool server."""

    id: str
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"]
    code: str | None
    container_id: str
    outputs: list[dict[str, Any]] | None = None


class WebSearchCall(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="web_search_call"
):
    """A web search or page visit by a tool server."""

    id: str
    status: Literal["in_progress", "searching", "completed", "failed", "incomplete"]
    action: dict[str, Any] = {}
    results: str | UnsetType = UNSET
    """The text that the model reads; an extension."""


Execution = Literal["server", "client"]


class ToolSearchCall(_Item, frozen=True, tag="tool_search_call"):
    """A search for deferred tools, which the server answers or the client."""

    arguments: Any
    """A JSON object, as the model wrote it; a client may have sent any value."""
    execution: Execution
    call_id: str | None = None


class ToolSearchOutput(_Item, frozen=True, tag="tool_search_output"):
    """The tools that a search has found: the model may call them from here on."""

    tools: list[dict[str, Any]]
    execution: Execution
    call_id: str | None = None


class ShellAction(msgspec.Struct, frozen=True, kw_only=True):
    commands: list[str]
    max_output_length: int | None = None
    timeout_ms: int | None = None


class ShellCall(_Item, frozen=True, tag="shell_call"):
    """Commands for the client's shell, or for one in a container, which the server runs."""

    call_id: str
    action: ShellAction
    environment: dict[str, Any] | None = None
    caller: Caller | UnsetType = UNSET

    @property
    def container_id(self) -> str | None:
        """The container that the server runs the commands in; None for the client's machine."""
        container = (self.environment or {}).get("container_id")
        return container if isinstance(container, str) else None


class ShellOutcome(msgspec.Struct, frozen=True):
    type: Literal["exit", "timeout"]
    exit_code: int | UnsetType = UNSET


class ShellOutput(msgspec.Struct, frozen=True):
    """What one command wrote, and how it ended."""

    stdout: str
    stderr: str
    outcome: ShellOutcome


class ShellCallOutput(_Item, frozen=True, tag="shell_call_output"):
    call_id: str
    output: list[ShellOutput]
    max_output_length: int | None = None
    caller: Caller | UnsetType = UNSET


class LocalShellAction(msgspec.Struct, frozen=True, kw_only=True):
    command: list[str]
    env: dict[str, str] = {}
    type: Literal["exec"] = "exec"
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(_Item, frozen=True, tag="local_shell_call"):
    """One command, as a list of words, for the client's shell."""

    call_id: str
    action: LocalShellAction


class LocalShellCallOutput(_Item, frozen=True, tag="local_shell_call_output"):
    """The output of the call whose `call_id` is this item's id, or that it names."""

    output: str
    call_id: str = ""


class PatchOperation(msgspec.Struct, frozen=True):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | UnsetType = UNSET


class ApplyPatchCall(_Item, frozen=True, tag="apply_patch_call"):
    """A file that the client creates, changes by a diff, or deletes."""

    call_id: str
    operation: PatchOperation
    caller: Caller | UnsetType = UNSET


class ApplyPatchCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="apply_patch_call_output"):
    id: str
    call_id: str
    status: Literal["completed", "failed"]
    output: str | None = None
    caller: Caller | UnsetType = UNSET


ClientCall = ShellCall | LocalShellCall | ApplyPatchCall
"""Calls of OpenAI's tools that the client runs."""
ClientOutput = ShellCallOutput | LocalShellCallOutput | ApplyPatchCallOutput
CLIENT_ID_PREFIXES: dict[type[Any], str] = {
    ShellCall: "sh",
    ShellCallOutput: "sho",
    LocalShellCall: "lsh",
    LocalShellCallOutput: "lsho",
    ApplyPatchCall: "apc",
    ApplyPatchCallOutput: "apco",
}

PairedCall = FunctionCall | CustomToolCall | ToolSearchCall | ClientCall
"""Calls that are answered by an item with their `call_id`."""
CallOutput = FunctionCallOutput | CustomToolCallOutput | ToolSearchOutput | ClientOutput
AnsweredByItem = ToolSearchCall | ShellCall
"""Calls whose result is an item of its own, whoever answers them."""
HostedCall = McpCall | CodeInterpreterCall | WebSearchCall | AnsweredByItem
HostedItem = (
    McpListTools | HostedCall | ToolSearchOutput | ShellCallOutput | McpApprovalRequest | McpApprovalResponse
)
HOSTED_ID_PREFIXES: dict[type[Any], str] = {
    McpListTools: "mcpl",
    McpCall: "mcp",
    McpApprovalRequest: "mcpr",
    McpApprovalResponse: "mcpa",
    CodeInterpreterCall: "ci",
    WebSearchCall: "ws",
    ToolSearchCall: "tsc",
    ToolSearchOutput: "tso",
}


def awaits_client(item: "Item") -> bool:
    """Whether the model goes on when the client has answered the item."""
    if isinstance(item, ToolSearchCall):
        return item.execution == "client"
    if isinstance(item, ShellCall):
        return item.container_id is None
    return isinstance(item, FunctionCall | CustomToolCall | McpApprovalRequest | ClientCall)


class OtherItem(_Item, frozen=True, tag="holdfast:other"):
    """An item of a type that is not supported, stored and returned with all of its fields."""

    fields: dict[str, Any] = msgspec.field(name="given")
    """All of the item's fields; `given` in the stored JSON."""


Item = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Compaction
    | SettingsItem
    | HostedItem
    | ClientCall
    | ClientOutput
    | OtherItem
)

_ITEM_TYPES: dict[str, type[Item]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Item) if kind is not OtherItem
}

ID_PREFIXES: dict[type[Item], str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
    Compaction: "cmp",
    AdditionalTools: "at",
    ConfigurationUpdate: "cu",
    **HOSTED_ID_PREFIXES,
    **CLIENT_ID_PREFIXES,
    OtherItem: "item",
}
"""Id prefixes of items, without the underscore."""

IMAGE_UNSEEN = "[An image was given here. This model reads text only and cannot see it.]"


def plain_text(parts: Sequence[ContentPart]) -> str:
    return "".join(_text_of(part) for part in parts)


def _text_of(part: ContentPart) -> str:
    match part:
        case InputText(text) | OutputText(text):
            return text
        case Refusal(refusal):
            return refusal
        case PreparedImage():
            return "[An image]"
        case InputImage():
            return IMAGE_UNSEEN
        case InputFile(filename):
            data = part.file_data if isinstance(part.file_data, str) else ""
            return f"[File {filename or 'without a name'}]\n{file_text(data)}\n[End of file]\n"


def output_text(output: str | Sequence[ContentPart]) -> str:
    """The text of a call's output."""
    return output if isinstance(output, str) else plain_text(output)


def text_of(item: Item) -> str | None:
    """The text of a message or of a call's output; None for other items."""
    match item:
        case Message(content=[InputText(text) | OutputText(text)]):
            return text
        case Message(content=content):
            return plain_text(content)
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            return output_text(output)
    return None


def item_type(item: Item) -> str:
    return str(item.fields["type"]) if isinstance(item, OtherItem) else str(item.__struct_config__.tag)


def encode_item(item: Item) -> bytes:
    """The item's JSON, as sent to clients and stored."""
    if isinstance(item, OtherItem):
        return msgspec.json.encode({**item.fields, "id": item.id, "status": item.status})
    return msgspec.json.encode(item)


class _TypeField(msgspec.Struct):
    type: str


def decode_item(payload: str | bytes) -> Item:
    """The item of a JSON that `encode_item` returned."""
    kind = _ITEM_TYPES.get(decode_as(payload, _TypeField).type)
    if kind is not None:
        # A client may have sent a hosted item with other fields than the server's own.
        foreign = kind in HOSTED_ID_PREFIXES or kind in CLIENT_ID_PREFIXES
        with suppress(*((msgspec.ValidationError,) if foreign else ())):
            item: Item = decode_as(payload, kind)
            return item
    fields: dict[str, Any] = msgspec.json.decode(payload)
    return OtherItem(fields["id"], fields.get("status", "completed"), fields)


def images_of(item: Item) -> list[InputImage]:
    return [part for part in _parts(item) if isinstance(part, InputImage)]


def with_images(item: Item, change: Callable[[InputImage], ContentPart]) -> Item:
    """The item with each picture replaced; the same object if nothing changes."""
    before = _parts(item)
    after = [change(part) if isinstance(part, InputImage) else part for part in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return item
    name = "content" if isinstance(item, Message) else "output"
    changed: Item = msgspec.structs.replace(item, **{name: after})
    return changed


def _parts(item: Item) -> Sequence[ContentPart]:
    match item:
        case Message(content=parts):
            return parts
        case FunctionCallOutput(output=list(parts)) | CustomToolCallOutput(output=list(parts)):
            return parts
    return ()
