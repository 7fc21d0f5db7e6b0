"""Decodes content parts of messages and tool outputs: text under several type names, images, files."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from server.protocol.decode import convert
from server.protocol.error_object import missing_parameter, missing_value, unsupported_value
from server.protocol.input_files import FileError, file_content, is_pdf, storable_file_data
from server.protocol.input_images import check_image, page_images
from server.protocol.responses.items import (
    ContentPart,
    Detail,
    InputFile,
    InputImage,
    InputText,
    OutputText,
    Refusal,
    Text,
)

MAX_NESTING = 32
"""Maximum nesting of untyped values: msgspec encodes them recursively, at any depth of the stack."""


class TypeReader(NamedTuple):
    """The decoder of one `type` of item or content part."""

    shape: type[msgspec.Struct]
    """The fields beside `type`."""
    read: Callable[[dict[str, Any], str], Any]


class _TextParam(msgspec.Struct, kw_only=True):
    text: Text


class _RefusalParam(msgspec.Struct, kw_only=True):
    refusal: Text


class _OutputTextParam(msgspec.Struct, kw_only=True):
    text: Text
    annotations: list[dict[str, Any]] | None = None


class _Image(msgspec.Struct, kw_only=True):
    image_url: str | None = None
    file_id: str | None = None
    detail: Detail | None = None


class _File(msgspec.Struct, kw_only=True):
    filename: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


def read_parts(parts: Sequence[dict[str, Any]], path: str) -> list[ContentPart]:
    """The content parts, and after a PDF with a `detail` its pages as pictures. Raises InvalidRequest."""
    read: list[ContentPart] = []
    for index, part in enumerate(parts):
        kind, own_path = part.get("type"), f"{path}[{index}]"
        reader = CONTENT_READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            sentence = f"Content of type {abbreviated(kind)} is not supported; this model reads text."
            raise unsupported_value(sentence, f"{own_path}.type")
        content = reader.read(part, own_path)
        read += content if isinstance(content, list) else [content]
    return read


def _read_image(part: dict[str, Any], path: str) -> InputImage:
    image: _Image = convert(part, _Image, path)
    if not image.image_url and not image.file_id:
        param = f"{path}.image_url"
        sentence = f"Missing required parameter: '{param}'; an image has an image_url or a file_id."
        raise missing_value(sentence, param)
    return check_image(InputImage(image.image_url, image.file_id, image.detail or "auto"), path)


def _read_output_text(part: dict[str, Any], path: str) -> OutputText:
    param: _OutputTextParam = convert(part, _OutputTextParam, path)
    annotations = param.annotations or []
    if is_nested_deeper(annotations, MAX_NESTING):
        raise unsupported_value("Annotations are nested too deeply.", f"{path}.annotations")
    return OutputText(param.text, annotations)


def _read_file(part: dict[str, Any], path: str) -> list[ContentPart]:
    file: _File = convert(part, _File, path)
    if file.file_data is None:
        if file.file_url is None and file.file_id is None:
            raise missing_parameter(f"{path}.file_data")
        where = "file_url" if file.file_url is not None else "file_id"
        raise unsupported_value(
            "Files are read from file_data only: send the file's content as a data URL.", f"{path}.{where}"
        )
    try:
        content = file_content(file.file_data)
        pages: list[InputImage] = []
        if file.detail in ("low", "high") and is_pdf(content):
            pages = page_images(content, file.detail, path)
        data = storable_file_data(file.file_data, needs_text=not pages)
    except FileError as error:
        raise unsupported_value(str(error), f"{path}.file_data") from error
    return [InputFile(file.filename if file.filename is not None else UNSET, data), *pages]


CONTENT_READERS: dict[str, TypeReader] = {
    **dict.fromkeys(
        ("input_text", "text", "summary_text", "reasoning_text"),
        TypeReader(_TextParam, lambda part, path: InputText(convert(part, _TextParam, path).text)),
    ),
    "output_text": TypeReader(_OutputTextParam, _read_output_text),
    "refusal": TypeReader(
        _RefusalParam, lambda part, path: Refusal(convert(part, _RefusalParam, path).refusal)
    ),
    **dict.fromkeys(("input_image", "computer_screenshot"), TypeReader(_Image, _read_image)),
    "input_file": TypeReader(_File, _read_file),
}


def is_nested_deeper(value: object, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep."""
    match value:
        case list():
            inner = value
        case dict():
            inner = list(value.values())
        case _:
            return False
    return levels == 0 or any(is_nested_deeper(element, levels - 1) for element in inner)


def refuse_deep(element: dict[str, Any], path: str) -> None:
    """Raises InvalidRequest for an item with values nested deeper than `MAX_NESTING`."""
    if is_nested_deeper(element, MAX_NESTING):
        raise unsupported_value("The item is nested too deeply.", path)


def abbreviated(value: object) -> str:
    if not isinstance(value, str):
        return "null" if value is None else type(value).__name__
    return repr(value[:100])
