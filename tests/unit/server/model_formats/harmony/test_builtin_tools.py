"""Tools of the server's that gpt-oss was trained on."""

from collections.abc import Sequence
from typing import Any

from server.hosted_tools.call_items import items_for_model
from server.model_formats.interface import Conversation, Tool
from server.protocol.responses.items import CodeInterpreterCall, Item
from tests.support.harmony import harmony_format, text_of, user

TOOLS = [
    Tool(name="python", namespace="python", parameters={"type": "object"}, builtin=True),
    Tool(name="search", namespace="browser", parameters={"type": "object"}, builtin=True),
]


def written(items: Sequence[Item], **fields: Any) -> str:
    return text_of(harmony_format().write(Conversation(items=items, **fields)).token_ids)


def test_they_are_told_in_the_models_own_words() -> None:
    asked = written([user("a")], chat_template_kwargs={"builtin_tools": ["browser", "python"]})
    assert written([user("a")], tools=TOOLS) == asked
    assert asked != written([user("a")])


def test_code_that_was_run_is_read_as_the_model_wrote_it() -> None:
    ran = CodeInterpreterCall("ci_1", "completed", "1 + 1", "c", [{"type": "logs", "logs": "2"}])
    text = written([user("a"), *items_for_model([ran])], tools=TOOLS)
    assert "to=python<|channel|>analysis code<|message|>1 + 1<|call|>" in text
    assert "<|start|>python to=assistant<|channel|>analysis<|message|>2<|end|>" in text
