"""The pictures of a prompt: read from the store, normalised, with the text that stands for each of them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from engine.request import MAX_IMAGE_BYTES, MAX_IMAGES
from server.errors import InvalidRequest, Overloaded
from server.input_images.image_reader import ImageReader, NormalisedImage, image_text
from server.prompting.engine_request import cache_salt
from server.prompting.served_model import LoadedModel
from server.protocol.error_object import invalid_value
from server.protocol.input_images import ImageError, data_url_bytes, is_data_url, parse_content
from server.protocol.responses.items import Detail, InputImage, Item, PreparedImage, images_of, with_images
from server.protocol.responses.request import CreateResponse

PromptImages = Mapping[tuple[str, Detail], PreparedImage]
"""By source and detail."""


def stored_digests(items: Iterable[Item]) -> set[bytes]:
    """The digests of the pictures of these items whose bytes are in the store."""
    digests = {parse_content(image.content) for item in items for image in images_of(item)}
    return {digest for digest in digests if digest is not None}


def prompt_images(
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    items: Iterable[Item],
    stored: Mapping[bytes, bytes],
    attempts: int = 1,
) -> PromptImages:
    """The pictures of these items; empty for a model that reads text only.

    `stored` has the bytes of `stored_digests`. Pictures without bytes are left out: the prompt has a sentence
    in their place. Raises InvalidRequest for too many, and for those that the model cannot read; Overloaded
    if that many attempts to read one found the server too busy, or the engine cannot say how long it is.
    """
    reader = served.images
    if reader is None:
        return {}
    salt = cache_salt(tenant, request)
    images: dict[tuple[str, Detail], PreparedImage] = {}
    size = 0
    for image in (image for item in items for image in images_of(item)):
        content = _content(image, stored)
        key = (image.source or "", image.detail)
        if content is None or key in images:
            continue
        try:
            data, digest = _normalised(reader, tenant, content, image.detail, attempts)
            text = image_text(served.engine, data, salt)
        except ImageError as error:
            raise InvalidRequest(str(error), param="input", code="invalid_image") from error
        size += len(data)
        if size > MAX_IMAGE_BYTES:
            raise InvalidRequest(
                f"The pictures of a prompt may have {MAX_IMAGE_BYTES} bytes as PNG; these have more.",
                param="input",
                code="image_too_large",
            )
        images[key] = PreparedImage(
            detail=image.detail, data=data, digest=digest, text=text.text, tokens=text.tokens
        )
    return images


def _normalised(
    reader: ImageReader, tenant: str, content: bytes, detail: Detail, attempts: int
) -> NormalisedImage:
    for _ in range(attempts - 1):
        with suppress(Overloaded):
            return reader.normalised(tenant, content, detail)
    return reader.normalised(tenant, content, detail)


def with_prompt_images(items: Sequence[Item], images: PromptImages) -> Sequence[Item]:
    """The items with the pictures that the prompt has. Raises InvalidRequest for more than `MAX_IMAGES`."""
    if not images:
        return items
    if sum(len(images_of(item)) for item in items) > MAX_IMAGES:
        raise invalid_value(f"A prompt may have {MAX_IMAGES} pictures.", "input")
    return [
        with_images(item, lambda image: images.get((image.source or "", image.detail), image))
        for item in items
    ]


def _content(image: InputImage, stored: Mapping[bytes, bytes]) -> bytes | None:
    """The picture's file; None if the server has none, as of URLs that were not fetched."""
    digest = parse_content(image.content)
    if digest is not None:
        return stored.get(digest)
    source = image.source or ""
    if not is_data_url(source):
        return None
    try:
        return data_url_bytes(source)
    except ImageError:
        return None
