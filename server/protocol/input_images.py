"""Pictures of requests: data URLs decoded, and the check of a picture while the request is decoded.

The check is the served model's: a model that reads text only takes pictures unread.
"""

import base64
import binascii
from collections.abc import Callable
from contextvars import ContextVar

from server.protocol.error_object import DecodeFailure
from server.protocol.responses.items import InputImage

CHECK: ContextVar[Callable[[InputImage], InputImage] | None] = ContextVar("check", default=None)
"""Returns the picture, with `content` if it was fetched; raises ImageError. None if pictures are not read.
Set for the request of this thread."""


class ImageError(ValueError):
    """The picture cannot be used. The message is sent to the client."""

    def __init__(self, message: str, code: str) -> None:
        """`code` is one of OpenAI's codes of image errors."""
        super().__init__(message)
        self.code = code


def check_image(image: InputImage, path: str) -> InputImage:
    """The picture as `CHECK` returns it. Raises DecodeFailure with the path of its URL."""
    check = CHECK.get()
    if check is None:
        return image
    try:
        return check(image)
    except ImageError as error:
        where = "image_url" if image.image_url else "file_id"
        raise DecodeFailure(str(error), f"{path}.{where}", error.code) from error


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def data_url_bytes(url: str) -> bytes:
    """The bytes of a data URL in base64. Raises ImageError."""
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise ImageError("A picture's data URL is data:image/...;base64, and its bytes.", "invalid_image_url")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError("The picture's data is not valid base64.", "invalid_base64_image") from error


def data_url(media_type: str, content: bytes) -> str:
    """The data URL of a picture."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
