import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.protocol.input_files import MAX_FILE_TEXT
from server.protocol.responses.items import (
    IMAGE_UNSEEN,
    MAX_TEXT,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    decode_item,
    encode_item,
    item_type,
    plain_text,
)
from tests.support.builders import RESPONSE, read_items


def read(*elements: Any) -> list[Item]:
    return read_items(list(elements))


def read_message(element: Any) -> Message:
    (item,) = read(element)
    assert isinstance(item, Message)
    return item


def test_a_string_is_one_user_message() -> None:
    (item,) = read_items("Hello")
    assert item == Message(f"msg_{RESPONSE.hex}i0", "completed", "user", [InputText("Hello")])


def test_an_empty_list_is_no_items() -> None:
    assert read() == []


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_the_easy_form_needs_neither_type_nor_parts(role: str) -> None:
    easy = read_message({"role": role, "content": "Hi"})
    typed = read_message({"type": "message", "role": role, "content": "Hi"})
    assert easy == typed
    assert plain_text(easy.content) == "Hi"
    assert isinstance(easy.content[0], OutputText if role == "assistant" else InputText)


def test_every_part_of_a_message_is_kept_in_order() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": [{"type": "url_citation", "url": "u"}]},
        {"type": "refusal", "refusal": "c"},
    ]
    message = read_message({"role": "assistant", "content": parts})
    assert message.content == [
        InputText("a"),
        OutputText("b", [{"type": "url_citation", "url": "u"}]),
        Refusal("c"),
    ]
    assert plain_text(message.content) == "abc"


def test_ids_and_statuses_of_a_client_are_replaced_by_our_own() -> None:
    first, second = read(
        {"id": "msg_theirs", "status": "incomplete", "role": "user", "content": "a"},
        {"id": "rs_theirs", "type": "reasoning", "summary": []},
    )
    assert (first.id, second.id) == (f"msg_{RESPONSE.hex}i0", f"rs_{RESPONSE.hex}i1")
    assert (first.status, second.status) == ("completed", "completed")


def test_a_phase_is_kept_and_a_null_one_is_absent() -> None:
    labelled = read_message({"role": "assistant", "content": "", "phase": "commentary"})
    unlabelled = read_message({"role": "assistant", "content": "", "phase": None})
    absent = read_message({"role": "assistant", "content": ""})
    assert labelled.phase == "commentary"
    assert unlabelled == absent


def test_any_subset_of_a_reasoning_item_is_read() -> None:
    (whole,) = read(
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "c"}],
            "encrypted_content": "e",
        }
    )
    assert isinstance(whole, Reasoning)
    assert (whole.summary, whole.content) == ([SummaryText("s")], [ReasoningText("c")])
    assert whole.encrypted_content == "e"
    (bare,) = read({"type": "reasoning", "content": None, "encrypted_content": None})
    (empty,) = read({"type": "reasoning"})
    assert bare == empty


@pytest.mark.parametrize("kind", ["image", "", None, 7, [], {}])
def test_an_unsupported_item_is_refused_by_its_path(kind: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read({"role": "user", "content": "fine"}, {"type": kind})
    assert (caught.value.param, caught.value.code) == ("input[1].type", "unsupported_value")


@pytest.mark.parametrize("kind", ["input_audio", "", None, 7, [], {}])
def test_an_unsupported_part_is_refused_by_its_path(kind: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read({"role": "user", "content": [{"type": "input_text", "text": ""}, {"type": kind}]})
    assert (caught.value.param, caught.value.code) == ("input[0].content[1].type", "unsupported_value")


def test_a_part_without_a_type_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read({"role": "user", "content": [{"text": "a"}]})
    assert caught.value.param == "input[0].content[0].type"


def test_a_text_over_the_limit_is_refused_by_its_path() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read({"role": "user", "content": [{"type": "input_text", "text": "a" * (MAX_TEXT + 1)}]})
    assert caught.value.param == "input[0].content[0].text"


def test_calls_and_their_outputs_are_read_whatever_ids_they_bring() -> None:
    call, output, custom, answer = read(
        {
            "type": "function_call",
            "id": "fc_foreign",
            "call_id": "c1",
            "name": "f",
            "arguments": "{}",
            "unknown": 1,
        },
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x", "namespace": "n"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "y"}],
            "status": "incomplete",
        },
    )
    assert call == FunctionCall(f"fc_{RESPONSE.hex}i0", "completed", "c1", "f", "{}")
    assert output == FunctionCallOutput(f"fco_{RESPONSE.hex}i1", "completed", "c1", "done")
    assert custom == CustomToolCall(f"ctc_{RESPONSE.hex}i2", "completed", "c2", "g", "x", "n")
    assert answer == CustomToolCallOutput(f"ctco_{RESPONSE.hex}i3", "incomplete", "c2", [InputText("y")])


def test_items_without_a_meaning_here_are_kept_as_they_were_given() -> None:
    given = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a"]}
    (item,) = read(given)
    assert item_type(item) == "file_search_call"
    kept = decode_item(encode_item(item))
    assert msgspec.json.decode(encode_item(kept)) == {**given, "id": f"item_{RESPONSE.hex}i0"}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_a_text_file_is_read_into_the_prompt(text: str) -> None:
    encoded = base64.b64encode(text.encode()).decode()
    for data in (f"data:text/plain;base64,{encoded}", encoded):
        message = read_message(
            {"role": "user", "content": [{"type": "input_file", "filename": "a.txt", "file_data": data}]}
        )
        assert plain_text(message.content) == f"[File a.txt]\n{text}\n[End of file]\n"


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"file_id": "file_1"}, "file_id"),
        ({"file_url": "https://example.org/a"}, "file_url"),
        ({"file_data": "data:application/pdf;base64,/w=="}, "file_data"),
        ({"file_data": "data:text/plain"}, "file_data"),
        ({"file_data": "no base64!"}, "file_data"),
        ({"file_data": base64.b64encode(b"a" * (MAX_FILE_TEXT + 1)).decode()}, "file_data"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_its_path(part: dict[str, str], where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read({"role": "user", "content": [{"type": "input_file", **part}]})
    assert caught.value.param == f"input[0].content[0].{where}"


def test_a_model_is_told_of_an_image_that_it_cannot_see() -> None:
    url = "data:image/png;base64,AAAA"
    message = read_message({"role": "user", "content": [{"type": "input_image", "image_url": url}]})
    assert message.content == [InputImage(url)]
    assert plain_text(message.content) == IMAGE_UNSEEN
