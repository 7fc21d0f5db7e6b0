import json

import pytest

from server.console.pages.history import PREVIEW_CHARS, preview


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "message", "content": [{"type": "input_text", "text": "Hello\n\n you"}]}, "Hello you"),
        ({"type": "message", "content": "Hello"}, "Hello"),
        ({"type": "function_call", "name": "f", "arguments": '{"a": "b"}'}, '{"a": "b"}'),
        ({"type": "function_call_output", "output": "sunny"}, "sunny"),
        ({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"type": "message", "content": []}, ""),
        ({"type": "message", "content": [{"type": "input_text", "text": "\0\N{SNOWMAN}"}]}, "\0\N{SNOWMAN}"),
    ],
)
def test_a_preview_is_the_first_text_of_an_item_in_one_line(item: object, words: str) -> None:
    assert preview(json.dumps(item)) == words


def test_a_long_text_is_cut() -> None:
    words = preview(json.dumps({"text": "a" * 1000}))
    assert len(words) == PREVIEW_CHARS
    assert words.endswith("…")


def test_json_that_ends_anywhere_gives_the_text_before() -> None:
    whole = json.dumps({"text": 'a\\"\N{SNOWMAN}\n"b'})
    begins = [preview(whole[:end]) for end in range(len(whole))]
    assert all(preview(whole).startswith(begin) for begin in begins)


def test_nothing_has_no_preview() -> None:
    assert preview(None) == ""
