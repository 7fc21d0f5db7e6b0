"""What is refused of a request's pictures; other parameters are in `tests/contract`."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from engine.front.validation import refuse_bad_images
from engine.request import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    EngineRequest,
    ImageText,
    ModelInfo,
    PromptImage,
    RequestRefused,
)
from tests.support.engines import make_request

TOKEN = 50
MODEL = ModelInfo(
    vocab_size=97,
    context_length=256,
    stop_ids=frozenset(),
    temperature=0,
    top_p=1,
    image_placeholder="<image>",
    image_token_id=TOKEN,
)
PROMPT = [1, 2, TOKEN, TOKEN, 3, TOKEN, 4, TOKEN, TOKEN, TOKEN, 5, 6]


def image_text(data: bytes, _cache_salt: str) -> ImageText:
    """Of pictures whose file has a byte for each token."""
    if data == b"bad":
        raise RequestRefused("bad_image", "The picture cannot be read.")
    return ImageText("<image>" * len(data), len(data))


def image(start: Any, length: Any, data: Any = b"abc", **fields: Any) -> PromptImage:
    return PromptImage(
        **{
            "data": data,
            "digest": hashlib.sha256(data).digest() if isinstance(data, bytes) else b"",
            "start": start,
            "length": length,
            **fields,
        }
    )


def request(*images: PromptImage, **fields: Any) -> EngineRequest:
    return make_request("1", PROMPT, images=images, **fields)


def refusal(engine_request: EngineRequest, model: ModelInfo = MODEL) -> str:
    with pytest.raises(RequestRefused) as caught:
        refuse_bad_images(engine_request, model, image_text)
    assert caught.value.reason == "bad_image"
    return str(caught.value)


def test_a_request_may_have_pictures_with_other_tokens_between_their_own() -> None:
    refuse_bad_images(request(), MODEL, image_text)
    refuse_bad_images(request(image(2, 4), image(7, 3)), MODEL, image_text)
    refuse_bad_images(request(image(2, 2, b"ab"), image(5, 1, b"a"), image(7, 3)), MODEL, image_text)


def test_a_model_without_pictures_takes_none() -> None:
    blind = replace(MODEL, image_placeholder=None, image_token_id=None)
    refuse_bad_images(request(), blind, image_text)
    assert refusal(request(image(2, 4)), blind) == "The model reads no pictures."


@pytest.mark.parametrize(
    "bad",
    [
        image(2, 2),  # two tokens for three rows
        image(2, 6),  # four
        image(1, 5),  # begins before its first token
        image(2, 5),  # ends behind its last
        image(7, 3, b"ab"),
    ],
    ids=str,
)
def test_a_picture_must_have_as_many_tokens_as_it_has_rows(bad: PromptImage) -> None:
    assert "begin and end with token 50" in refusal(request(bad))


@pytest.mark.parametrize(
    "bad",
    [
        image(-1, 3), image(13, 1), image(7, 6), image(2**70, 1), image(2, 0), image(2, -4), image(2.5, 3),
        image(None, 3), image(2, "4"),
    ],
    ids=str,
)  # fmt: skip
def test_a_picture_must_be_in_the_prompt(bad: PromptImage) -> None:
    assert "in the prompt" in refusal(request(bad)) or "in the order" in refusal(request(bad))


def test_pictures_are_in_order_and_do_not_overlap() -> None:
    assert "order" in refusal(request(image(7, 3), image(2, 4)))
    assert "order" in refusal(request(image(2, 4), image(5, 5)))


def test_a_picture_is_not_in_earlier_output() -> None:
    assert "in the prompt" in refusal(request(image(7, 3), output_offset=3))
    refuse_bad_images(request(image(7, 3), output_offset=2), MODEL, image_text)


def test_the_digest_must_be_that_of_the_data() -> None:
    assert "digest" in refusal(request(image(2, 4, digest=hashlib.sha256(b"other").digest())))


def test_a_picture_that_cannot_be_read_is_refused_with_its_request() -> None:
    assert refusal(request(image(2, 4, b"bad"))) == "The picture cannot be read."


def test_pictures_are_counted_and_weighed_before_they_are_read() -> None:
    assert f"{MAX_IMAGES} pictures" in refusal(request(*[image(2, 4)] * (MAX_IMAGES + 1)))
    half = bytes(MAX_IMAGE_BYTES // 2)
    bad = image(2, 4, half, digest=b"")
    assert "bytes together" in refusal(request(bad, bad, image(7, 3, b"a", digest=b"")))


@pytest.mark.parametrize("images", [[image(2, 4)], (b"abc",), (image(2, 4, "abc"),), None], ids=type)
def test_what_is_no_tuple_of_pictures_is_refused(images: Any) -> None:
    refusal(replace(request(), images=images))
