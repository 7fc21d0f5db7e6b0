from typing import Any

import pytest

from server.runs.context import new_items
from server.wire.errors import DecodeFailure
from server.wire.items import (
    MAX_TEXT,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    plain_text,
)
from server.wire.request import CreateResponse
from tests.support.builders import RESPONSE


def read(*elements: Any) -> list[Item]:
    return new_items(CreateResponse(model="m", input=list(elements)), RESPONSE)


def read_message(element: Any) -> Message:
    (item,) = read(element)
    assert isinstance(item, Message)
    return item


def test_a_string_is_one_user_message() -> None:
    (item,) = new_items(CreateResponse(model="m", input="Hello"), RESPONSE)
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


@pytest.mark.parametrize("kind", ["function_call", "item_reference", "image", "", None, 7, [], {}])
def test_an_unsupported_item_is_refused_by_its_path(kind: object) -> None:
    with pytest.raises(DecodeFailure) as caught:
        read({"role": "user", "content": "fine"}, {"type": kind})
    assert (caught.value.param, caught.value.code) == ("input[1].type", "unsupported_value")


@pytest.mark.parametrize("kind", ["input_image", "input_file", "reasoning_text", "", None, 7, [], {}])
def test_an_unsupported_part_is_refused_by_its_path(kind: object) -> None:
    with pytest.raises(DecodeFailure) as caught:
        read({"role": "user", "content": [{"type": "input_text", "text": ""}, {"type": kind}]})
    assert (caught.value.param, caught.value.code) == ("input[0].content[1].type", "unsupported_value")


def test_a_part_without_a_type_is_refused() -> None:
    with pytest.raises(DecodeFailure) as caught:
        read({"role": "user", "content": [{"text": "a"}]})
    assert caught.value.param == "input[0].content[0].type"


def test_a_text_over_the_limit_is_refused_by_its_path() -> None:
    with pytest.raises(DecodeFailure) as caught:
        read({"role": "user", "content": [{"type": "input_text", "text": "a" * (MAX_TEXT + 1)}]})
    assert caught.value.param == "input[0].content[0].text"
