import base64
import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.input_images import content_of, parse_content
from server.protocol.responses.items import (
    ContentPart,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    OtherItem,
    decode_item,
)
from server.store.content.images import NewImage
from server.store.content.item_rows import MAX_FIELD, OMITTED_URL, decode_image, stored_item

PNG = b"\x89PNG\r\n\x1a\n" * 1000
DIGEST = hashlib.sha256(PNG).digest()
CONTENT = f"sha256:{DIGEST.hex()}"
BODY = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{BODY}"
WEB = "https://example.com/cat.png"
IMAGE = NewImage(DIGEST, "image/png", PNG)


def message(*parts: ContentPart) -> Message:
    return Message("msg_1", "completed", "user", list(parts))


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (InputImage(URL, detail="high"), InputImage(None, None, "high", CONTENT)),
        (InputImage(WEB, content=URL), InputImage(WEB, content=CONTENT)),
        (InputImage(URL, "file_1"), InputImage(None, "file_1", content=CONTENT)),
    ],
)
def test_a_pictures_bytes_are_beside_the_item_which_names_them(part: InputImage, stored: InputImage) -> None:
    for item in (
        message(InputText("Look:"), part, part),
        FunctionCallOutput("fco_1", "completed", "c", [part]),
        CustomToolCallOutput("ctco_1", "completed", "c", [part]),
    ):
        row = stored_item(item)
        assert list(row.images) == [IMAGE]
        assert row.for_model is None
        name = "content" if isinstance(item, Message) else "output"
        expected = [stored if one is part else one for one in getattr(item, name)]
        assert decode_item(row.payload) == msgspec.structs.replace(item, **{name: expected})
        assert len(row.payload) < 500


def test_an_item_that_was_read_from_the_store_names_its_picture_again() -> None:
    item = message(InputImage(content=CONTENT), InputImage(WEB, content=CONTENT))
    row = stored_item(item)
    assert decode_item(row.payload) == item
    assert list(row.images) == [NewImage(DIGEST, "", None)]


@pytest.mark.parametrize("part", [InputImage(WEB), InputImage(file_id="file_1"), InputText(URL)])
def test_what_has_no_bytes_stays_as_it_is(part: ContentPart) -> None:
    row = stored_item(message(part))
    assert decode_item(row.payload) == message(part)
    assert row.images == ()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BODY}=",
        f"data:image/png;base64,%{BODY}",
        f"data:image/png;base64,{BODY}é",
        "data:image/png;base64,",
        f"data:image/png,{BODY}",
        f"data:text/plain;base64,{BODY}",
        f'data:image/"png;base64,{BODY}',
        f"data:image/{'x' * 100};base64,{BODY}",
        f"data:;base64,{BODY}",
        f"http:image/png;base64,{BODY}",
        "data:image/png;base64",
        "",
    ],
)
def test_what_is_no_base64_data_url_of_a_picture_stays_as_it_is_and_is_not_read_for_prompts(url: str) -> None:
    assert decode_image(url) is None
    row = stored_item(message(InputImage(url), InputImage(WEB)))
    assert row.images == ()
    assert decode_item(row.payload) == message(InputImage(url), InputImage(WEB))
    if url.startswith("data:") and len(url) > 5000:
        assert row.for_model is not None
        assert decode_item(row.for_model) == message(InputImage(OMITTED_URL), InputImage(WEB))
    unset = stored_item(message(InputImage(WEB, content=url or "x")))
    assert decode_item(unset.payload) == message(InputImage(WEB))


@pytest.mark.parametrize(
    "url",
    [
        f"DATA:Image/PNG;BASE64,{BODY}",
        f"data:image/png;name=cat.png;base64,{BODY}",
        f"data:image/png;base64, {BODY[:76]}\r\n{BODY[76:]}\n",
    ],
)
def test_the_same_bytes_are_the_same_picture_however_they_are_written(url: str) -> None:
    assert decode_image(url) == IMAGE


@given(st.binary(min_size=1, max_size=50), st.sampled_from(["png", "jpeg", "webp", "gif", "svg+xml"]))
def test_every_picture_is_found_again_by_its_digest(data: bytes, kind: str) -> None:
    image = decode_image(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")
    assert image == NewImage(hashlib.sha256(data).digest(), f"image/{kind}", data)
    assert parse_content(content_of(image.digest)) == image.digest


@pytest.mark.parametrize("content", [None, 7, "", CONTENT[:-1], CONTENT + "0", CONTENT.upper(), URL])
def test_what_names_no_stored_picture_is_not_taken_for_one(content: Any) -> None:
    assert parse_content(content) is None


def test_long_fields_of_unsupported_items_and_long_addresses_are_not_read_for_prompts() -> None:
    fields = {"type": "computer_call_output", "output": "x" * (MAX_FIELD + 1), "call_id": "c"}
    row = stored_item(OtherItem("item_1", "completed", fields))
    assert "x" * 100 in row.payload
    assert row.for_model is not None
    assert "x" * 100 not in row.for_model
    address = WEB + "?" + "x" * MAX_FIELD
    long = stored_item(message(InputImage(address)))
    assert long.for_model is not None
    assert decode_item(long.for_model) == message(InputImage(OMITTED_URL))
