"""Pictures become PNGs in a process of their own, whatever is in them."""

import base64
import io
from collections.abc import Iterator
from contextvars import Context

import pytest
from PIL import Image

from engine.request import ImageText, RequestRefused
from engine.scripted_engine import ScriptedEngine
from server.errors import InvalidRequest
from server.input_images.image_reader import (
    MAX_FILE_BYTES,
    MAX_PDF_PAGES,
    MAX_READ_PIXELS,
    ImageReader,
    TenantImages,
)
from server.input_images.image_worker import normalised
from server.outbound_http.allowed_addresses import read_allowed
from server.protocol import bounded_process, input_images
from server.protocol.input_files import file_text
from server.protocol.input_images import ImageError, data_url_bytes
from server.protocol.responses.content_parts import read_parts
from server.protocol.responses.items import InputFile, InputImage, InputText
from tests.support import pdfs
from tests.support.hostile_pictures import READABLE, UNREADABLE, encoded, png, square
from tests.support.web_server import Page, WebServer

PIXELS = 4 * 1024 * 1024


def url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def opened(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    assert image.format == "PNG"
    assert image.mode == "RGB"
    return image


@pytest.mark.parametrize("name", READABLE)
def test_every_form_of_a_picture_becomes_the_same_picture(name: str) -> None:
    data = normalised(READABLE[name](), MAX_READ_PIXELS, PIXELS, 8192)
    assert isinstance(data, bytes), data
    image = opened(data)
    assert image.size == (64, 64)
    red, *white = (image.getpixel(place) for place in ((10, 10), (50, 10), (10, 50), (50, 50)))
    assert isinstance(red, tuple)
    assert red[0] > 230
    assert max(red[1:]) < 40
    assert all(isinstance(pixel, tuple) and min(pixel) > 230 for pixel in white)


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_picture_that_can_be_read_is_named(name: str) -> None:
    make, error = UNREADABLE[name]
    assert normalised(make(), MAX_READ_PIXELS, PIXELS, 8192) == error


@pytest.mark.parametrize(
    ("size", "detail", "expected"),
    [
        ((640, 480), "auto", (640, 480)),
        ((640, 480), "high", (640, 480)),
        ((640, 480), "low", (512, 384)),
        ((4000, 1000), "auto", (4000, 1000)),
        ((4000, 2000), "auto", (2896, 1448)),
        ((30, 3000), "low", (5, 512)),
    ],
)
def test_large_pictures_are_scaled_down_in_their_proportions(
    size: tuple[int, int], detail: str, expected: tuple[int, int]
) -> None:
    reader = ImageReader(PIXELS)
    image = opened(reader.normalised("one", encoded(Image.new("RGB", size)), detail).data)  # type: ignore[arg-type]
    assert image.size == expected


def test_a_picture_is_read_once_for_a_tenant_and_again_for_another() -> None:
    reader = ImageReader(PIXELS)
    content = encoded(square())
    first = reader.normalised("one", content, "auto")
    assert reader.normalised("one", content, "high") is first
    another = reader.normalised("two", content, "auto")
    assert another == first
    assert another is not first


def test_a_picture_that_takes_too_much_memory_ends_the_subprocess_alone() -> None:
    large = encoded(Image.new("RGB", (6000, 6000)))
    with pytest.raises(ImageError, match=r"damaged|too much"):
        ImageReader(PIXELS, memory=96 * 2**20).normalised("one", large, "auto")
    assert ImageReader(PIXELS).normalised("one", large, "auto").data


def test_a_picture_that_takes_too_much_time_ends_the_subprocess_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_process, "CPU_SECONDS", 0)
    with pytest.raises(ImageError, match="too much time"):
        ImageReader(PIXELS).normalised("one", encoded(square()), "auto")


def test_the_cache_drops_what_was_not_used_for_the_longest_time() -> None:
    pictures = [encoded(square(size=(64, 64 + 2 * number))) for number in range(3)]
    reader = ImageReader(PIXELS)
    sizes = [len(reader.normalised("one", picture, "auto").data) for picture in pictures]
    reader = ImageReader(PIXELS, cache_bytes=sum(sizes) - 1)
    old, used, new = (reader.normalised("one", picture, "auto") for picture in (*pictures[:2], pictures[1]))
    assert new is used
    reader.normalised("one", pictures[2], "auto")
    assert reader.normalised("one", pictures[1], "auto") is used
    assert reader.normalised("one", pictures[0], "auto") is not old


class SmallEyes(ScriptedEngine):
    """An engine whose model cannot read a picture of one pixel."""

    def __init__(self) -> None: ...

    def image_text(self, data: bytes, cache_salt: str = "") -> ImageText:
        if opened(data).size == (1, 1):
            raise RequestRefused("bad_image", "The picture is too small.")
        return ImageText(cache_salt, 1)


def checked(part: dict[str, object], reader: ImageReader | None) -> object:
    """The part, decoded in a request of a tenant."""

    def decode() -> object:
        if reader is not None:
            input_images.SOURCE.set(TenantImages(reader, "one", SmallEyes()))
        (read,) = read_parts([{"type": "input_image", **part}], "input[0].content")
        return read

    return Context().run(decode)


@pytest.mark.parametrize(
    ("part", "where", "code"),
    [
        ({"image_url": url(b"<svg/>")}, "image_url", "unsupported_image_media_type"),
        ({"image_url": url(encoded(square())[:-40])}, "image_url", "image_parse_error"),
        ({"image_url": url(b"")}, "image_url", "empty_image_file"),
        ({"image_url": url(png(30_000, 30_000))}, "image_url", "image_too_large"),
        ({"image_url": "data:image/png;base64,%%%"}, "image_url", "invalid_base64_image"),
        ({"image_url": "data:image/png,abc"}, "image_url", "invalid_image_url"),
        ({"image_url": "data:image/png;base64"}, "image_url", "invalid_image_url"),
        ({"image_url": "file:///etc/passwd"}, "image_url", "invalid_image_url"),
        ({"image_url": "https://example.com/a.png"}, "image_url", "invalid_image_url"),
        ({"file_id": "file-1"}, "file_id", "image_file_not_found"),
        ({"image_url": url(encoded(Image.new("RGB", (1, 1))))}, "image_url", "invalid_image"),
    ],
)
def test_a_picture_that_cannot_be_used_is_refused_with_its_path(
    part: dict[str, object], where: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as failure:
        checked(part, ImageReader(PIXELS))
    assert failure.value.param == f"input[0].content[0].{where}"
    assert failure.value.code == code


def test_a_file_beyond_the_limit_is_refused_before_anything_finds_that_it_is_no_picture() -> None:
    with pytest.raises(ImageError, match=str(MAX_FILE_BYTES)):
        ImageReader(PIXELS).normalised("one", bytes(MAX_FILE_BYTES + 1), "auto")


def test_a_model_that_reads_text_only_takes_pictures_unread() -> None:
    assert checked({"image_url": "https://example.com/a.png"}, None) == InputImage(
        "https://example.com/a.png", None, "auto"
    )


def file_parts(pdf: bytes, detail: str | None, reader: ImageReader | None) -> list[object]:
    def decode() -> list[object]:
        if reader is not None:
            input_images.SOURCE.set(TenantImages(reader, "one", SmallEyes()))
        data = url(pdf, "application/pdf")
        part = {"type": "input_file", "filename": "a.pdf", "file_data": data, "detail": detail}
        return [*read_parts([part, {"type": "input_text", "text": "?"}], "input[0].content")]

    return Context().run(decode)


@pytest.mark.parametrize(("detail", "side"), [("low", 512), ("high", 1225)])
def test_pages_of_a_pdf_are_pictures_after_its_text_when_they_are_asked_for(detail: str, side: int) -> None:
    file, first, second, text = file_parts(pdfs.saying("One", "Two"), detail, ImageReader(PIXELS))
    assert isinstance(file, InputFile)
    assert isinstance(file.file_data, str)
    assert file_text(file.file_data) == "One\n\nTwo"
    assert text == InputText("?")
    for page in (first, second):
        assert isinstance(page, InputImage)
        assert page.image_url is None
        image = opened(data_url_bytes(str(page.content)))
        assert image.size == (side, side)
        assert image.convert("L").getextrema() == (0, 255)
    assert first != second


@pytest.mark.parametrize(("detail", "reader"), [(None, True), ("auto", True), ("high", False)])
def test_pages_of_a_pdf_are_not_drawn_unasked_or_for_a_model_that_reads_text_only(
    detail: str | None, reader: bool
) -> None:
    parts = file_parts(pdfs.saying("One"), detail, ImageReader(PIXELS) if reader else None)
    assert [type(part) for part in parts] == [InputFile, InputText]


def test_a_scanned_pdf_has_its_pages_alone() -> None:
    scanned = pdfs.with_pages(pdfs.stream(b"0 0 100 100 re f"))
    file, page, _ = file_parts(scanned, "low", ImageReader(PIXELS))
    assert isinstance(file, InputFile)
    assert file_text(str(file.file_data)) == ""
    assert isinstance(page, InputImage)
    with pytest.raises(InvalidRequest, match="no text in it"):
        file_parts(scanned, None, ImageReader(PIXELS))


@pytest.mark.parametrize(
    ("pdf", "message"),
    [
        (pdfs.saying(*["Page"] * (MAX_PDF_PAGES + 1)), "has more"),
        (b"%PDF-1.7 nothing of it", "cannot be drawn"),
    ],
)
def test_pages_that_cannot_be_drawn_are_refused_with_the_path_of_the_file(pdf: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as failure:
        file_parts(pdf, "high", ImageReader(PIXELS))
    assert failure.value.param == "input[0].content[0].file_data"


@pytest.fixture
def web() -> Iterator[WebServer]:
    pages = {
        "/square.png": Page(encoded(square()), "image/png"),
        "/mislabelled.jpg": Page(encoded(square()), "text/html"),
        "/odd": Page(encoded(square()), f"image/{'x' * 300}"),
        "/page": Page(b"<html></html>", "text/html"),
        "/long": Page(bytes(MAX_FILE_BYTES + 1), "image/png"),
        "/away": Page(b"", "", status=302, location="http://169.254.169.254/latest"),
    }
    with WebServer(pages) as server:
        yield server


def fetched(web: WebServer, path: str, hosts: str) -> object:
    reader = ImageReader(PIXELS, read_allowed(hosts.format(web.host)))
    return checked({"image_url": f"http://{web.host}{path}"}, reader)


def test_a_picture_is_fetched_from_an_allowed_host_and_kept_beside_its_url(web: WebServer) -> None:
    for path in ("/square.png", "/mislabelled.jpg", "/odd"):
        image = fetched(web, path, "http://{}")
        assert image == InputImage(f"http://{web.host}{path}", None, "auto", url(encoded(square())))


@pytest.mark.parametrize(
    ("path", "hosts", "message"),
    [
        ("/square.png", "http://other.test", "does not allow"),
        ("/square.png", "*", "does not allow"),
        ("/away", "http://{}", "does not allow"),
        ("/nothing", "http://{}", "answered 404"),
        ("/long", "http://{}", "larger than"),
        ("/page", "http://{}", "must be a PNG"),
    ],
)
def test_a_picture_that_may_not_or_cannot_be_fetched_is_refused_with_its_path(
    web: WebServer, path: str, hosts: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as failure:
        fetched(web, path, hosts)
    assert failure.value.param == "input[0].content[0].image_url"
