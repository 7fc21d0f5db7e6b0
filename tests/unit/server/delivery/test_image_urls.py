import base64
import hashlib
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from server.delivery.image_urls import (
    IMAGE_OMITTED,
    items_with_image_urls,
    page_with_image_urls,
    with_image_urls,
    without_image_urls,
)
from server.protocol.input_images import content_of
from server.protocol.responses.items import (
    ContentPart,
    InputImage,
    InputText,
    Message,
    OtherItem,
    decode_item,
    encode_item,
)
from server.store.content.images import StoredImage
from server.store.content.stored_items import PayloadPage

WEB = "https://example.com/cat.png"
PICTURES = [bytes([number]) * 3000 for number in range(5)]
STORED = {hashlib.sha256(data).digest(): StoredImage("image/png", data) for data in PICTURES}
CONNECTION: Any = None
T = "tenant"


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Collection[bytes]]:
    """The images table, and the digests of each `load`."""
    loads: list[Collection[bytes]] = []

    def load(_connection: object, tenant: str, digests: Collection[bytes]) -> dict[bytes, StoredImage]:
        assert tenant == T
        if digests:
            loads.append(set(digests))
        return {digest: STORED[digest] for digest in digests if digest in STORED}

    def sizes(connection: object, tenant: str, digests: Collection[bytes]) -> dict[bytes, int]:
        return {digest: len(STORED[digest].data) for digest in digests if digest in STORED}

    monkeypatch.setattr("server.delivery.image_urls.images", SimpleNamespace(load=load, sizes=sizes))
    return loads


def digest(number: int) -> bytes:
    return hashlib.sha256(PICTURES[number]).digest()


def named(number: int, url: str | None = None) -> InputImage:
    return InputImage(url, content=content_of(digest(number)))


def whole(number: int) -> InputImage:
    return InputImage(f"data:image/png;base64,{base64.b64encode(PICTURES[number]).decode()}")


def message(*parts: ContentPart) -> Message:
    return Message("msg_1", "completed", "user", list(parts))


def payload(*parts: ContentPart) -> str:
    return encode_item(message(*parts)).decode()


def test_pictures_get_their_urls_and_each_is_loaded_once(loaded: list[Collection[bytes]]) -> None:
    text = payload(InputText(f'"content":"{content_of(digest(0))}"'))
    given = with_image_urls(
        CONNECTION,
        T,
        [payload(named(0), InputText("a"), named(1)), text, payload(named(0)), payload(named(2, WEB))],
    )
    expected = [
        payload(whole(0), InputText("a"), whole(1)),
        text,
        payload(whole(0)),
        payload(InputImage(WEB)),
    ]
    assert given == expected
    assert loaded == [{digest(0), digest(1)}]


def test_what_is_known_is_not_loaded(loaded: list[Collection[bytes]]) -> None:
    assert with_image_urls(CONNECTION, T, [payload(named(0))], known=STORED) == [payload(whole(0))]
    assert loaded == []


def test_a_picture_that_is_not_there_has_no_url(caplog: pytest.LogCaptureFixture) -> None:
    lost = InputImage(content=content_of(b"\0" * 32))
    assert with_image_urls(CONNECTION, T, [payload(lost)]) == [payload(InputImage())]
    assert "1 pictures of stored items are not there" in caplog.text


def test_urls_count_among_the_bytes_as_often_as_they_are_given(loaded: list[Collection[bytes]]) -> None:
    listed = [payload(named(0), named(0)), payload(named(1)), payload(named(2))]

    def count(max_bytes: int) -> int:
        given = with_image_urls(CONNECTION, T, listed, max_bytes=max_bytes)
        assert sum(map(len, given[:-1])) < max_bytes + 500
        return len(given)

    assert [count(most) for most in (1, 8000, 9000, 12_000, 13_000)] == [1, 1, 2, 2, 3]
    assert loaded[0] == {digest(0)}


def test_a_page_that_is_cut_says_that_there_is_more() -> None:
    listed = [payload(named(0)), payload(named(1))]
    assert page_with_image_urls(CONNECTION, T, PayloadPage(listed, False)).more is False
    cut = page_with_image_urls(CONNECTION, T, PayloadPage(listed, False), 4000)
    assert cut == PayloadPage([payload(whole(0))], True)


def test_without_urls_every_picture_is_null() -> None:
    other = encode_item(OtherItem("i", "completed", {"type": "x", "image_url": WEB, "content": "y"})).decode()
    listed = [payload(named(0), named(1, WEB), whole(2), InputImage(WEB), InputText("a")), other]
    assert without_image_urls(listed) == [payload(*[InputImage()] * 4, InputText("a")), other]
    spoken = payload(InputText('{"type":"input_image"}'))
    assert without_image_urls([spoken]) == [spoken]


def test_a_damaged_item_is_given_as_it_is() -> None:
    damaged = '{"type":"message","content":"sha256:x","parts":[{"type":"input_image"}]}'
    assert with_image_urls(CONNECTION, T, [damaged]) == [damaged]
    assert without_image_urls([damaged]) == [damaged]


def test_of_items_beyond_a_bound_the_newest_pictures_are_given(loaded: list[Collection[bytes]]) -> None:
    items = [message(named(0)), message(named(1), named(1)), message(InputImage(WEB)), message(named(2))]
    assert items_with_image_urls(CONNECTION, T, items) == [
        message(whole(0)),
        message(whole(1), whole(1)),
        message(InputImage(WEB)),
        message(whole(2)),
    ]
    omitted = InputText(IMAGE_OMITTED)
    bounded = items_with_image_urls(CONNECTION, T, items, 12_500)
    assert bounded == [
        message(omitted),
        message(whole(1), whole(1)),
        message(InputImage(WEB)),
        message(whole(2)),
    ]
    assert loaded[-1] == {digest(1), digest(2)}
    least = items_with_image_urls(CONNECTION, T, items, 5000)
    assert [decode_item(encode_item(item)) for item in least] == [
        message(omitted),
        message(omitted, omitted),
        message(InputImage(WEB)),
        message(whole(2)),
    ]
