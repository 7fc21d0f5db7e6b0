"""`ServerImages`: how many tokens an engine server makes of a picture; each is asked for once."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from engine.remote.interface import ImageFile
from engine.request import ImageText, RequestRefused

MAX_KEPT = 4096
"""Pictures whose number of tokens is kept; a row has some hundred bytes."""


class ServerImages:
    """Thread-safe."""

    def __init__(
        self, token_id: int | None, placeholder: str | None, tokens_of: Callable[[ImageFile], Sequence[int]]
    ) -> None:
        """`token_id` and `placeholder` are those of `ModelInfo`. `tokens_of` asks a server."""
        self._token_id = token_id
        self._placeholder = placeholder or ""
        self._tokens_of = tokens_of
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._lock = Lock()

    def text(self, image: ImageFile) -> ImageText:
        """How the picture is written in a prompt. Raises `RequestRefused`, and what `tokens_of` raises."""
        if self._token_id is None:
            raise RequestRefused("bad_image", "The model reads no pictures.")
        count = self._count(image)
        return ImageText(self._placeholder * count, count)

    def _count(self, image: ImageFile) -> int:
        key = (image.cache_salt, image.digest)
        with self._lock:
            if key in self._counts:
                self._counts.move_to_end(key)
                return self._counts[key]
        tokens = self._tokens_of(image)
        if not tokens or set(tokens) != {self._token_id}:
            raise RequestRefused(
                "bad_image", "Pictures of this model have tokens of several kinds, which are not served."
            )
        with self._lock:
            self._counts[key] = len(tokens)
            if len(self._counts) > MAX_KEPT:
                self._counts.popitem(last=False)
        return len(tokens)
