import json
from typing import Any

import pytest

from server.console.item_view import MARKDOWN_CHARS, Part, item_view, item_views
from server.console.value_formats import MAX_MARKDOWN_CHARS
from server.store.console.response_detail import StoredItem


def stored(payload: dict[str, Any] | str, **more: Any) -> StoredItem:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    kind = "message" if isinstance(payload, str) else payload["type"]
    fields: dict[str, Any] = dict.fromkeys(StoredItem._fields)
    return StoredItem(**{**fields, "type": kind, "payload": text, "cut": False, **more})


def parts(payload: dict[str, Any]) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in item_view(stored(payload)).parts]


def test_a_message_has_its_texts_refusals_pictures_and_files() -> None:
    content = [
        {"type": "input_text", "text": "*a*"},
        {"type": "refusal", "refusal": "No."},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"},
    ]
    assert parts({"type": "message", "content": content}) == [
        ("text", "*a*"),
        ("refusal", "No."),
        ("image", "data:image/png;base64"),
        ("image", "https://example.org/a.png"),
        ("file", "a.pdf"),
    ]


def test_a_call_has_its_arguments_and_what_came_of_it() -> None:
    call = {"type": "mcp_call", "name": "f", "arguments": '{"a":1}', "output": "sunny", "error": None}
    assert parts(call) == [("json", '{\n  "a": 1\n}'), ("note", "output"), ("json", "sunny")]


def test_reasoning_has_its_summary_before_its_text() -> None:
    reasoning = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "long"}],
    }
    assert parts(reasoning) == [("text", "short"), ("text", "long")]


@pytest.mark.parametrize("payload", ['{"type": "mess', "[" * 100_000, "null", "1"])
def test_json_that_cannot_be_read_is_shown_as_it_is(payload: str) -> None:
    assert item_view(stored(payload)).parts == [Part(kind="code", text=payload)]


@pytest.mark.parametrize("content", [None, 1, {"a": 1}, [1, "x", None, {"type": "new"}]])
def test_contents_of_an_unknown_form_are_no_error(content: object) -> None:
    item_view(stored({"type": "message", "content": content}))
    item_view(stored({"type": "function_call_output", "output": content}))


def test_texts_beyond_a_page_s_share_of_markdown_are_shown_plain() -> None:
    tenth = MARKDOWN_CHARS // 10 - 10
    text = stored({"type": "message", "content": "a" * tenth})
    kinds = [view.parts[0].kind for view in item_views([text] * 12)]
    assert kinds == ["text"] * 10 + ["code"] * 2


def test_a_great_number_of_small_texts_is_bounded_and_one_that_is_plain_anyway_takes_no_share() -> None:
    small = stored({"type": "message", "content": [{"type": "input_text", "text": "a"}] * 500})
    long = stored({"type": "message", "content": "a" * (MAX_MARKDOWN_CHARS + 1)})
    views = item_views([long] * 20 + [small] * 200)
    rendered = [part for view in views for part in view.parts if part.kind == "text" and part.text == "a"]
    assert 30_000 < len(rendered) < 40_000
