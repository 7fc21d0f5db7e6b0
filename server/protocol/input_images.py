"""Pictures of requests: data URLs, and their check during decoding, if the model reads pictures."""

import base64
import binascii
import re
from contextvars import ContextVar
from typing import Final, Literal, Protocol

from server.errors import InvalidRequest
from server.protocol.responses.items import InputImage

CONTENT_PREFIX: Final = "sha256:"
"""With the digest in hex: the `content` of a stored picture."""
_CONTENT = re.compile(f"{CONTENT_PREFIX}([0-9a-f]{{64}})")


def content_of(digest: bytes) -> str:
    return CONTENT_PREFIX + digest.hex()


def parse_content(content: object) -> bytes | None:
    """The digest in a stored picture's `content`; None if it has none."""
    match = _CONTENT.fullmatch(content) if isinstance(content, str) else None
    return bytes.fromhex(match[1]) if match else None


class ImageSource(Protocol):
    """Reads the pictures of one tenant's requests. Its methods raise ImageError, and ApiError if too busy."""

    def check(self, image: InputImage) -> InputImage:
        """The picture, which can be read; with `content` if it was fetched."""

    def pages(self, pdf: bytes, detail: Literal["low", "high"]) -> list[InputImage]: ...


SOURCE: ContextVar[ImageSource | None] = ContextVar("source", default=None)
"""Set for the request of this thread; None if its model reads text only."""


class ImageError(ValueError):
    """The picture cannot be used. The message is sent to the client."""

    def __init__(self, message: str, code: str) -> None:
        """`code` is one of OpenAI's codes of image errors."""
        super().__init__(message)
        self.code = code


def check_image(image: InputImage, path: str) -> InputImage:
    """The picture as `SOURCE` returns it. Raises InvalidRequest with the path of its URL."""
    source = SOURCE.get()
    if source is None:
        return image
    try:
        return source.check(image)
    except ImageError as error:
        where = "image_url" if image.image_url else "file_id"
        raise InvalidRequest(str(error), f"{path}.{where}", error.code) from error


def page_images(pdf: bytes, detail: Literal["low", "high"], path: str) -> list[InputImage]:
    """The pages of a PDF; none if the model reads text only. Raises InvalidRequest with the data's path."""
    source = SOURCE.get()
    if source is None:
        return []
    try:
        return source.pages(pdf, detail)
    except ImageError as error:
        raise InvalidRequest(str(error), f"{path}.file_data", error.code) from error


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def data_url_bytes(url: str) -> bytes:
    """The bytes of a data URL in base64. Raises ImageError."""
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise ImageError("An image's data URL is data:image/...;base64, and its bytes.", "invalid_image_url")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError("The image's data is not valid base64.", "invalid_base64_image") from error


def data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
