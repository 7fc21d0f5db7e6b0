"""`ImageReader`: pictures of requests and pages of PDFs, fetched from allowed hosts and decoded by
subprocesses with limits, as they are untrusted. The cache is by tenant, so none can tell what another one has
sent.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

from engine.bounded_cache import BoundedCache
from engine.fair_limit import FairLimit
from engine.request import Engine, ImageText, RequestRefused
from server.errors import Overloaded
from server.outbound_http.allowed_addresses import AllowedAddresses, Refused
from server.outbound_http.guarded_http import FetchLimits, Unreachable, fetch
from server.protocol import bounded_process
from server.protocol.input_images import ImageError, data_url, data_url_bytes, is_data_url
from server.protocol.responses.items import Detail, InputImage

MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""Media types of pictures that can be read; a web server may call them anything."""
MAX_FILE_BYTES = 20 * 1024 * 1024
MAX_READ_PIXELS = 50_000_000
"""Pixels of a picture as it is decoded: 150 MB in RGB."""
MAX_SIDE = 8192
"""Pixels along the longer side of a normalised picture."""
LOW_SIDE = 512
"""Pixels along the longer side with `detail: "low"`."""
MEMORY = 1024 * 1024 * 1024
"""RLIMIT_AS of the subprocess, in bytes."""
MAX_CONCURRENT = max(2, (os.cpu_count() or 1) // 2)
"""Pictures read at the same time, at most half of them of one tenant."""
CACHE_BYTES = 256 * 1024 * 1024
MAX_PDF_PAGES = 20
MAX_PAGES_BYTES = 32 * 1024 * 1024
"""Bytes of a PDF's drawn pages, as PNG."""
MAX_PAGE_PIXELS = 1_500_000
FETCH = FetchLimits(size=MAX_FILE_BYTES, seconds=10.0, redirects=3)
_WAIT_SECONDS = 30.0
_WORKER = Path(__file__).with_name("image_worker.py")
_PAGE_WORKER = Path(__file__).with_name("pdf_page_worker.py")
_MESSAGES = {
    "type": ("An image must be a PNG, JPEG, WebP or GIF file.", "unsupported_image_media_type"),
    "broken": ("The image cannot be read: it is damaged or incomplete.", "image_parse_error"),
    "large": (f"An image may have at most {MAX_READ_PIXELS} pixels; this one has more.", "image_too_large"),
    "narrow": ("One side of an image may be at most 100 times as long as the other.", "invalid_image"),
    "empty": ("The image is empty.", "empty_image_file"),
}
_PAGE_MESSAGES = {
    "encrypted": "The PDF is encrypted: send it without a password.",
    "pages": f"Up to {MAX_PDF_PAGES} pages are read as pictures; the PDF has more: send no `detail`.",
    "large": f"The pages of the PDF have more than {MAX_PAGES_BYTES} bytes as pictures.",
    "broken": "The PDF's pages cannot be drawn.",
}
_HEAVY = ("The image takes too much time or memory to be read.", "image_too_large")


class NormalisedImage(NamedTuple):
    """A picture as an RGB PNG."""

    data: bytes
    digest: bytes
    """SHA-256 of `data`."""


_Key = tuple[str, bytes, bool]
"""Tenant, SHA-256 of the file, whether its detail is low."""


class ImageReader:
    """Thread-safe; its methods block."""

    def __init__(
        self,
        most_pixels: int,
        allowed: AllowedAddresses | None = None,
        *,
        memory: int = MEMORY,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Pictures of more than `most_pixels` are scaled down. `allowed` are the hosts of URLs, if any."""
        self._most_pixels = most_pixels
        self._memory = memory
        self._allowed = allowed
        self._limit = FairLimit(MAX_CONCURRENT, MAX_CONCURRENT // 2)
        self._cache = BoundedCache[_Key, NormalisedImage](cache_bytes)

    def with_content(self, image: InputImage) -> InputImage:
        """The picture of a request, fetched if it is at a URL. Raises ImageError."""
        if image.image_url is None:
            raise ImageError(
                "Uploaded files are not supported: send the image as image_url.", "image_file_not_found"
            )
        if is_data_url(url := image.image_url):
            return image
        if not url.lower().startswith(("https://", "http://")):
            raise ImageError("An image_url is a data URL or an https URL.", "invalid_image_url")
        if self._allowed is None:
            raise ImageError(
                "This server fetches no images (image-hosts): send the image as a data URL.",
                "invalid_image_url",
            )
        try:
            fetched = fetch(url, self._allowed, FETCH)
        except (Refused, Unreachable) as error:
            raise ImageError(
                f"The image could not be fetched: {error}", "failed_to_download_image"
            ) from error
        if fetched.status != 200:
            raise ImageError(
                f"The image could not be fetched: its server answered {fetched.status}.",
                "failed_to_download_image",
            )
        media_type = fetched.media_type if fetched.media_type in MEDIA_TYPES else "image/png"
        return InputImage(image.image_url, None, image.detail, data_url(media_type, fetched.body))

    def normalised(self, tenant: str, content: bytes, detail: Detail) -> NormalisedImage:
        """The file as the engine gets it. Raises ImageError and Overloaded."""
        if len(content) > MAX_FILE_BYTES:
            raise ImageError(f"A picture may have {MAX_FILE_BYTES} bytes.", "image_file_too_large")
        low = detail == "low"
        key = (tenant, hashlib.sha256(content).digest(), low)
        image = self._cache.get(key)
        if image is None:
            side = LOW_SIDE if low else MAX_SIDE
            data = self._run(tenant, _WORKER, content, MAX_READ_PIXELS, self._most_pixels, side)
            if data.startswith(b"{"):
                raise ImageError(*_MESSAGES[json.loads(data)["error"]])
            image = NormalisedImage(data, hashlib.sha256(data).digest())
            self._cache.put(key, image, len(data))
        return image

    def pages(self, tenant: str, pdf: bytes, detail: Literal["low", "high"]) -> list[InputImage]:
        """The pages of a PDF. Raises ImageError and Overloaded."""
        side = LOW_SIDE if detail == "low" else MAX_SIDE
        pixels = min(MAX_PAGE_PIXELS, self._most_pixels)
        output = self._run(tenant, _PAGE_WORKER, pdf, MAX_PDF_PAGES, MAX_PAGES_BYTES, pixels, side)
        head, _, files = output.partition(b"\n")
        answer = json.loads(head)
        if "error" in answer:
            raise ImageError(_PAGE_MESSAGES[answer["error"]], "unsupported_value")
        images = []
        for size in answer["sizes"]:
            images.append(InputImage(detail=detail, content=data_url("image/png", files[:size])))
            files = files[size:]
        return images

    def _run(self, tenant: str, worker: Path, content: bytes, *bounds: int) -> bytes:
        """The output of a worker. Raises ImageError if it took too much, Overloaded if it did not begin."""
        try:
            with self._limit.hold(tenant, _WAIT_SECONDS):
                return bounded_process.run(worker, content, self._memory, *bounds)
        except TimeoutError:
            message = "Too many images are being read; try again later."
            raise Overloaded(message, limit="pictures being read") from None
        except bounded_process.Exhausted:
            raise ImageError(*_HEAVY) from None


def image_text(engine: Engine, data: bytes, cache_salt: str) -> ImageText:
    """Return a picture's text in a prompt. Raises ImageError, or Overloaded if the engine cannot say now."""
    try:
        return engine.image_text(data, cache_salt)
    except RequestRefused as refused:
        if refused.reason == "bad_image":
            raise ImageError(str(refused), "invalid_image") from refused
        raise Overloaded("The engine reads no images at the moment; try again later.") from refused


class TenantImages(NamedTuple):
    """An `input_images.ImageSource`: a reader for one tenant, and the engine that gets what it reads."""

    reader: ImageReader
    tenant: str
    engine: Engine

    def check(self, image: InputImage) -> InputImage:
        image = self.reader.with_content(image)
        content = data_url_bytes(image.source or "")
        data = self.reader.normalised(self.tenant, content, image.detail).data
        image_text(self.engine, data, self.tenant)
        return image

    def pages(self, pdf: bytes, detail: Literal["low", "high"]) -> list[InputImage]:
        return self.reader.pages(self.tenant, pdf, detail)
