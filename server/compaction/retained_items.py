"""The items that a compaction keeps verbatim: recent messages, newest tool results, pending calls."""

from collections.abc import Iterator, Sequence

from server.model_formats.interface import Conversation, PromptError, PromptTooLong
from server.prompting.loaded_model import LoadedModel
from server.protocol.responses.items import (
    ID_PREFIXES,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    Message,
    plain_text,
)


def retained_messages(served: LoadedModel, items: Sequence[Item], max_tokens: int) -> list[Message]:
    """The newest messages that the model did not write; instructions are chosen before user messages."""
    candidates = [item for item in items if isinstance(item, Message) and _is_retained(item)]
    chosen: set[str] = set()
    left = max_tokens
    newest_first = candidates[::-1]
    for message in sorted(newest_first, key=lambda message: message.role == "user"):
        left -= _tokens(served, plain_text(message.content), left)
        if left < 0:
            break
        chosen.add(message.id)
    return [message for message in candidates if message.id in chosen]


def _is_retained(message: Message) -> bool:
    """False for an earlier compaction's summary, which has that item's id: it is summarised again."""
    return message.role != "assistant" and not message.id.startswith(ID_PREFIXES[Compaction] + "_")


def pending_calls(items: Sequence[Item]) -> list[Item]:
    """Calls without an output and approval requests without an answer, so that they can be answered."""
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
    answered |= {item.approval_request_id for item in items if isinstance(item, McpApprovalResponse)}
    return [
        item
        for item in items
        if (isinstance(item, FunctionCall | CustomToolCall) and item.call_id not in answered)
        or (isinstance(item, McpApprovalRequest) and item.id not in answered)
    ]


def newest_results(served: LoadedModel, items: Sequence[Item], max_tokens: int) -> list[Item]:
    """The newest calls with their outputs, from which the model continues."""
    chosen: list[Item] = []
    left = max_tokens
    for call, output in _answered_calls(items[::-1]):
        left -= _tokens(served, _text(call), left) + _tokens(served, _text(output), left)
        if left < 0:
            break
        chosen += [call, output]
    return [item for item in items if item in chosen]


def _answered_calls(newest_first: Sequence[Item]) -> Iterator[tuple[Item, Item]]:
    outputs: dict[str, Item] = {}
    for item in newest_first:
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            outputs[item.call_id] = item
        elif isinstance(item, FunctionCall | CustomToolCall) and item.call_id in outputs:
            yield item, outputs.pop(item.call_id)


def _text(item: Item) -> str:
    match item:
        case FunctionCall(arguments=text) | CustomToolCall(input=text):
            return text
        case FunctionCallOutput(output=str() as text) | CustomToolCallOutput(output=str() as text):
            return text
        case FunctionCallOutput(output=list() as parts) | CustomToolCallOutput(output=list() as parts):
            return plain_text(parts)
    return ""


def _tokens(served: LoadedModel, text: str, limit: int) -> int:
    """The number of tokens of a text; of a longer one some number above `limit`."""
    alone = Message("", "completed", "user", [InputText(text)])
    try:
        return len(served.model_format.write(Conversation(items=[alone], max_tokens=limit)).token_ids)
    except PromptError:
        return len(text)
    except PromptTooLong:
        return limit + 1
