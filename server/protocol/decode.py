"""JSON to typed values: msgspec decoders for threads, bounds on a body's size, errors with the JSON path.
msgspec builds a type's decoder at first use without a lock, and a second thread that uses it meanwhile
crashes the process. So `decode_as` and `convert_to` prepare each type once, under a lock; other modules pass
types to msgspec only while they are imported.

Decoding holds the GIL for about 1 µs per key and value, more than a second for 10 MB of small values, and
half a minute for decimal fractions that are slow to round. `check_size` counts delimiters before, which takes
milliseconds and releases the GIL. NUL characters are refused because Postgres' text cannot store them.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from server.errors import InvalidRequest
from server.protocol.error_object import missing_parameter, unsupported_parameter
from server.protocol.parameter_support import ELSEWHERE, PATHS, TABLES, Endpoint, ParameterRow

T = TypeVar("T")

_preparing = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
"""Decoders by type; a type in here is prepared, including the types of its fields."""


def decode_as(data: bytes | str, kind: type[T]) -> T:
    """Decodes a JSON document. Raises msgspec.DecodeError, including ValidationError."""
    decoder = _decoders.get(kind)
    value: T = (_prepare(kind) if decoder is None else decoder).decode(data)
    return value


def convert_to(value: object, kind: type[T]) -> T:
    """Converts builtins (dicts, lists, scalars). Raises msgspec.ValidationError."""
    if kind not in _decoders:
        _prepare(kind)
    return msgspec.convert(value, type=kind)


def _prepare(kind: Any) -> msgspec.json.Decoder[Any]:
    with _preparing:
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


MAX_STRINGS = 65_536
"""Maximum number of strings, including keys, and of lists and objects together."""
MAX_VALUES = 131_072
"""Maximum number of values of all types; numbers are the cheapest."""
MAX_TOKEN_VALUES = 1_000_000
"""`MAX_VALUES` of endpoints that accept prompts as token ids."""
MAX_DECIMALS = 2_048
"""Maximum number of floats; parsing one takes up to 30 µs (`1e308`)."""
MAX_DIGITS = 64
"""Maximum consecutive digits; the time to parse an integer is quadratic in them."""
_SMALL = 4 * MAX_DECIMALS
"""Bytes of a document that cannot exceed any limit."""
PIECE_BYTES = 2**18
"""Bytes counted without releasing the GIL."""
_BACKSLASHES = re.compile(rb"\\*")
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


def check_size(data: bytes, max_values: int = MAX_VALUES) -> None:
    """Raises InvalidRequest for too many values, in linear time."""
    if len(data) <= _SMALL:
        return
    quotes = nested = values = decimals = 0
    for plain in _pieces(data):
        parts = plain.split(b'"')
        outside = b" ".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        nested += outside.count(b"{") + outside.count(b"[")
        values += outside.count(b",")
        decimals += outside.count(b".") + outside.count(b"E") + outside.count(b"e")
        decimals -= outside.count(b"true") + outside.count(b"false")
        if quotes > 2 * MAX_STRINGS or nested > MAX_STRINGS or values > max_values:
            raise _too_much(
                f"it may have {MAX_STRINGS} strings, as many lists and objects, and {max_values} values in "
                "all"
            )
        if decimals > MAX_DECIMALS or b"0" * (MAX_DIGITS + 1) in outside.translate(_AS_ZEROS):
            raise _too_much(
                f"it may have {MAX_DECIMALS} numbers with a fraction or an exponent, and numbers of "
                f"{MAX_DIGITS} digits in a row"
            )


def _pieces(data: bytes) -> Iterator[bytes]:
    """The document in pieces, without escaped backslashes and quotes; no escape is split."""
    start = 0
    while start < len(data):
        run = _BACKSLASHES.match(data, start + PIECE_BYTES)
        end = len(data) if run is None else run.end() + 1  # with what the last backslash escapes
        piece = data[start:end]
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece
        start = end


def _too_much(bounds: str) -> InvalidRequest:
    return InvalidRequest(f"The request body has too many values: {bounds}.", code="too_many_values")


_BOUND_ERROR = re.compile(r"Expected `(?P<kind>int|float|str|array|object)` (?:of length )?(?P<sign><=|>=) ")
_BOUND_CODES = {
    "int": "integer_{}_value",
    "float": "decimal_{}_value",
    "str": "string_{}_length",
    "array": "array_{}_length",
    "object": "object_{}_properties",
}
"""OpenAI's error codes for values out of bounds, by msgspec's type name."""
_ERROR_FIELD = re.compile(r"(?P<fault>missing required|contains unknown) field `(?P<name>[^`]+)`")
_ERROR_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$")

ANY_KEY = "[...]"
"""How msgspec writes the key of an object in a path."""
MAX_NEUTRAL = 64
"""Bytes of a refused parameter's value that may be one without an effect."""
MAX_KEYS = 1024
"""Keys of an object among which a wrong value is looked for."""


def decode(
    data: bytes, kind: type[T], max_values: int = MAX_VALUES, *, endpoint: Endpoint | None = None
) -> T:
    """Decodes one JSON document of type `kind` with at most `max_values` values. Raises InvalidRequest.

    With an endpoint, also refuses names of parameters that this endpoint does not support.
    """
    check_size(data, max_values)
    try:
        if endpoint is not None:
            check_names(endpoint, decode_as(data, dict[str, msgspec.Raw]))
        value = decode_as(data, kind)
        if rb"\u0000" in data:
            _refuse_nul(msgspec.json.decode(data))
    except msgspec.ValidationError as error:
        raise _decode_failure(error, value=data, kind=kind) from error
    except msgspec.DecodeError as error:
        message = f"The request body is not valid JSON: {error}."
        raise InvalidRequest(message, code="invalid_json") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("The request body is not valid UTF-8.", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from error
    return value


def check_names(endpoint: Endpoint, params: Mapping[str, msgspec.Raw]) -> None:
    """Raises InvalidRequest for the first parameter (name and JSON) that the endpoint refuses."""
    table, elsewhere = TABLES[endpoint], ELSEWHERE[endpoint]
    for name, value in params.items():
        row = table.get(name) or elsewhere.get(name)
        if row is not None and row.verdict == "refused" and not _is_neutral(row, value):
            message = f"Unsupported parameter: '{name}' is not supported on {PATHS[endpoint]}. {row.reason}"
            raise unsupported_parameter(message, name)


def _is_neutral(row: ParameterRow, value: msgspec.Raw) -> bool:
    if len(value) > MAX_NEUTRAL:
        return False
    read = msgspec.json.decode(value)
    return read is None or read in row.neutral


def convert(value: object, kind: Any, param: str) -> Any:
    """Converts builtins (dicts, lists, scalars) to `kind`. Raises InvalidRequest with paths under `param`."""
    try:
        return convert_to(value, kind)
    except msgspec.ValidationError as error:
        raise _decode_failure(error, param, value=value, kind=kind) from error


def _decode_failure(
    error: msgspec.ValidationError, prefix: str = "", *, value: object = None, kind: Any = None
) -> InvalidRequest:
    """The failure with the path of the mistake, below `prefix`, in the value or JSON that is no `kind`."""
    text = str(error)
    match = _ERROR_PATH.search(text)
    path = match["path"] if match else ""
    message = text[: match.start()] if match else text
    if path.endswith(ANY_KEY):
        path = _with_key(path.removesuffix(ANY_KEY), value, kind)
    field = _ERROR_FIELD.search(message)
    if field:
        path = f"{path}.{field['name']}" if path else field["name"]
    param = f"{prefix}{'.' if prefix and path and not path.startswith('[') else ''}{path}"
    if field and field["fault"] == "missing required":
        return missing_parameter(param)
    where = f" (at {param})" if param else ""
    return InvalidRequest(f"{message}{where}.", param or None, _code(message))


def _with_key(field: str, value: object, kind: Any) -> str:
    """The path of the first wrong value of an object that is a field of `value`; of the object if unknown."""
    if isinstance(value, bytes):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # beyond the first mistake
            return field
    sent = value.get(field) if isinstance(value, dict) else None
    if not isinstance(sent, dict):
        return field
    for key, inner in itertools.islice(sent.items(), MAX_KEYS):
        tag = {"type": value["type"]} if isinstance(value, dict) and "type" in value else {}
        try:
            convert_to({**tag, field: {key: inner}}, kind)
        except msgspec.ValidationError as error:
            if str(error).endswith(f"`$.{field}{ANY_KEY}`"):
                return f"{field}.{key[:100]}"
    return field


def _code(message: str) -> str:
    if bound := _BOUND_ERROR.match(message):
        return _BOUND_CODES[bound["kind"]].format("above_max" if bound["sign"] == "<=" else "below_min")
    if "contains unknown field" in message:
        return "unknown_parameter"
    return "invalid_value" if message.startswith("Invalid enum value") else "invalid_type"


def _refuse_nul(value: object, path: str = "") -> None:
    if isinstance(value, str) and "\0" in value:
        raise InvalidRequest("Text must not contain the NUL character.", path or None, "invalid_text")
    if isinstance(value, list):
        for index, element in enumerate(value):
            _refuse_nul(element, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, element in value.items():
            if "\0" in key:
                raise InvalidRequest("Keys must not contain the NUL character.", path or None, "invalid_text")
            _refuse_nul(element, f"{path}.{key}" if path else key)
