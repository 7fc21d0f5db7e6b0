"""The pictures of a prompt: which are read, from where, and how many there may be."""

import base64
import hashlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine.request import MAX_IMAGE_BYTES, MAX_IMAGES, ImageText, RequestRefused
from server.errors import InvalidRequest, Overloaded
from server.input_images.image_reader import NormalisedImage
from server.prompting.prompt_images import prompt_images, stored_digests, with_prompt_images
from server.protocol.responses.items import Detail, InputImage, Item, Message, PreparedImage
from server.protocol.responses.request import CreateResponse

REQUEST = msgspec.convert({"model": "m", "input": "x", "cache_salt": "salt"}, CreateResponse)
DIGEST = hashlib.sha256(b"stored").digest()
STORED = InputImage(content=f"sha256:{DIGEST.hex()}")


class Reader:
    """Gives a picture's file back, unless it is too busy for it."""

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy

    def normalised(self, tenant: str, content: bytes, _detail: Detail) -> NormalisedImage:
        assert tenant == "tenant"
        if self.busy:
            self.busy -= 1
            raise Overloaded("Busy.")
        return NormalisedImage(content, hashlib.sha256(content).digest())


def image_text(data: bytes, salt: str) -> ImageText:
    assert salt == "tenant\0salt"
    if data == b"odd":
        raise RequestRefused("bad_image", "Too odd.")
    return ImageText("<image>", 1)


def served(reader: Reader | None) -> Any:
    return SimpleNamespace(images=reader, engine=SimpleNamespace(image_text=image_text))


def sent(content: bytes) -> InputImage:
    return InputImage("data:image/png;base64," + base64.b64encode(content).decode())


def message(*images: InputImage) -> Item:
    return Message("", "completed", "user", [*images])


def read(*images: InputImage, reader: Reader | None = None, attempts: int = 1) -> list[bytes | None]:
    """The bytes that the prompt has of each picture; None for one that is a sentence."""
    items = [message(image) for image in images]
    found = prompt_images(served(reader or Reader()), "tenant", REQUEST, items, {DIGEST: b"stored"}, attempts)
    parts = [part for item in with_prompt_images(items, found) for part in getattr(item, "content", ())]
    return [part.data if isinstance(part, PreparedImage) else None for part in parts]


def test_pictures_are_read_from_the_request_and_from_the_store() -> None:
    assert stored_digests([message(sent(b"a"), STORED)]) == {DIGEST}
    assert read(sent(b"a"), STORED, sent(b"a")) == [b"a", b"stored", b"a"]


def test_pictures_without_bytes_stay_a_sentence() -> None:
    lost = InputImage(content=f"sha256:{'0' * 64}")
    assert read(lost, InputImage("https://example.com/a.png"), InputImage("data:,")) == [None, None, None]


def test_a_model_that_reads_text_only_has_none() -> None:
    assert prompt_images(served(None), "tenant", REQUEST, [message(sent(b"a"))], {}) == {}


def test_a_prompt_has_a_most_of_pictures() -> None:
    assert len(read(*[sent(b"a")] * MAX_IMAGES)) == MAX_IMAGES
    with pytest.raises(InvalidRequest, match=f"{MAX_IMAGES} pictures"):
        read(*[sent(b"a")] * (MAX_IMAGES + 1))


def test_a_prompt_has_a_most_of_bytes_of_pictures() -> None:
    half = bytes(MAX_IMAGE_BYTES // 2)
    assert len(read(sent(half), sent(half[1:]))) == 2
    with pytest.raises(InvalidRequest, match=f"{MAX_IMAGE_BYTES} bytes"):
        read(sent(half), sent(half + b"\0"))


def test_what_the_model_refuses_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequest, match="Too odd"):
        read(sent(b"odd"))


def test_a_busy_server_is_asked_as_often_as_the_caller_can_wait() -> None:
    assert read(sent(b"a"), reader=Reader(busy=2), attempts=3) == [b"a"]
    with pytest.raises(Overloaded):
        read(sent(b"a"), reader=Reader(busy=3), attempts=3)
