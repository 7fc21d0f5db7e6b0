"""The text of `input_file` parts: text files and PDFs, as data URLs or plain base64."""

import base64
import binascii
from urllib.parse import unquote_to_bytes

from server.protocol.files.pdf_extraction import PdfError, is_pdf, pdf_text

MAX_FILE_TEXT = 1_048_576
"""Maximum bytes of one file's text, all of which goes into the prompt."""


_PDF_TYPE = "data:application/pdf"


class FileError(ValueError):
    """The file cannot be read; the message is sent to the client."""


def storable_file_data(data: str) -> str:
    """`file_data` in the form that is stored: of a PDF, its text as a data URL.

    So a PDF is parsed once, however many later requests include it. Raises FileError or ExtractionBusy.
    """
    content = _content(data)
    if data.startswith(_PDF_TYPE) and not is_pdf(content):
        raise FileError("The file is not a PDF that can be read.")
    if not is_pdf(content):
        file_text(data)
        return data
    try:
        text = pdf_text(content, MAX_FILE_TEXT)
    except PdfError as error:
        raise FileError(str(error)) from error
    return "data:text/plain;base64," + base64.b64encode(text.encode()).decode()


def file_text(data: str) -> str:
    """The text in `file_data`. Raises FileError unless it is UTF-8."""
    content = _content(data)
    if len(content) > MAX_FILE_TEXT:
        raise FileError(f"The file is larger than {MAX_FILE_TEXT} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError("The file is not text in UTF-8; this server reads text files and PDFs.") from error
    if "\0" in text:
        raise FileError("The file is not text; this server reads text files and PDFs.")
    return text


def _content(data: str) -> bytes:
    if not data.startswith("data:"):
        return _from_base64(data)
    head, comma, body = data.partition(",")
    if not comma:
        raise FileError("The data URL has no content.")
    return _from_base64(body) if head.endswith(";base64") else unquote_to_bytes(body)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FileError("file_data is not a data URL and not valid base64.") from error
