import msgspec
import pytest

from server.protocol.responses.items import (
    ContentPart,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    decode_item,
    encode_item,
    images_of,
    with_images,
)

PARTS: list[ContentPart] = [InputText("a"), InputImage("b"), InputImage(content="c")]
ITEMS: list[Item] = [
    Message("msg_1", "completed", "user", PARTS),
    FunctionCallOutput("fco_1", "completed", "c", PARTS),
    CustomToolCallOutput("ctco_1", "completed", "c", PARTS),
]
PLAIN: list[Item] = [
    Message("msg_1", "completed", "user", [InputText("a")]),
    FunctionCallOutput("fco_1", "completed", "c", "text"),
    FunctionCall("fc_1", "completed", "c", "f", "{}"),
]


@pytest.mark.parametrize("item", ITEMS)
def test_the_pictures_of_messages_and_outputs_are_found_and_replaced(item: Item) -> None:
    assert images_of(item) == PARTS[1:]
    changed = with_images(item, lambda part: msgspec.structs.replace(part, image_url="x"))
    assert [part.image_url for part in images_of(changed)] == ["x", "x"]
    assert images_of(item) == PARTS[1:]
    assert with_images(item, lambda part: part) is item
    assert decode_item(encode_item(item)) == item


@pytest.mark.parametrize("item", PLAIN)
def test_an_item_without_pictures_stays_the_same(item: Item) -> None:
    assert images_of(item) == []
    assert with_images(item, lambda _: InputText("x")) is item


def test_content_is_in_the_json_only_where_it_is_set() -> None:
    first, second = (encode_item(Message("m", "completed", "user", [part])) for part in PARTS[1:])
    assert b'"content":"' not in first
    assert b'"content":"c"' in second
