"""Bytes from a client become typed values; every mistake becomes a `DecodeFailure` that names its path.

Hostile JSON raises more than msgspec's own errors: deep nesting is a RecursionError, bad UTF-8 a
UnicodeDecodeError. NUL is refused because Postgres text cannot hold it.
"""

import re
from typing import Any, TypeVar

import msgspec

from server.protocol.errors import DecodeFailure
from server.protocol.json_bounds import MAX_VALUES, check_size
from server.protocol.parameter_rows import Endpoint
from server.protocol.parameters import check_names
from server.protocol.typed import convert_to, decode_as

T = TypeVar("T")

_BOUND_ERROR = re.compile(r"Expected `(?P<kind>int|float|str|array|object)` (?:of length )?(?P<sign><=|>=) ")
_BOUND_CODES = {
    "int": "integer_{}_value",
    "float": "decimal_{}_value",
    "str": "string_{}_length",
    "array": "array_{}_length",
    "object": "object_{}_properties",
}
"""To msgspec's name of a type, OpenAI's codes for a value of it that is out of bounds."""
_ERROR_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$")


def decode(
    data: bytes, kind: type[T], most_numbers: int = MAX_VALUES, *, endpoint: Endpoint | None = None
) -> T:
    """`data` as one JSON document of the given type, with so many values at most. Raises DecodeFailure.

    With an endpoint, it is an object of which no name may be one that this endpoint refuses.
    """
    check_size(data, most_numbers)
    try:
        if endpoint is not None:
            check_names(endpoint, decode_as(data, dict[str, msgspec.Raw]))
        value = decode_as(data, kind)
        if rb"\u0000" in data:
            _refuse_nul(msgspec.json.decode(data))
    except msgspec.ValidationError as error:
        raise _decode_failure(error) from error
    except msgspec.DecodeError as error:
        message = f"The request body is not valid JSON: {error}."
        raise DecodeFailure(message, code="invalid_json") from error
    except UnicodeDecodeError as error:
        raise DecodeFailure("The request body is not valid UTF-8.", code="invalid_json") from error
    except RecursionError as error:
        raise DecodeFailure("The request body is nested too deeply.", code="invalid_json") from error
    return value


def convert(value: object, kind: Any, param: str) -> Any:
    """`value` (as `decode` gives for `object`) as the given type; paths in errors begin with `param`."""
    try:
        return convert_to(value, kind)
    except msgspec.ValidationError as error:
        raise _decode_failure(error, param) from error


def _decode_failure(error: msgspec.ValidationError, prefix: str = "") -> DecodeFailure:
    text = str(error)
    found = _ERROR_PATH.search(text)
    path = found["path"] if found else ""
    message = text[: found.start()] if found else text
    if missing := re.search(r"missing required field `([^`]+)`", message):
        path = f"{path}.{missing[1]}" if path else missing[1]
    param = f"{prefix}{'.' if prefix and path and not path.startswith('[') else ''}{path}"
    where = f" (at {param})" if param else ""
    return DecodeFailure(f"{message}{where}.", param or None, _code(message))


def _code(message: str) -> str:
    """OpenAI's code for a mistake of which msgspec says so."""
    if bound := _BOUND_ERROR.match(message):
        return _BOUND_CODES[bound["kind"]].format("above_max" if bound["sign"] == "<=" else "below_min")
    if "missing required field" in message:
        return "missing_required_parameter"
    return "invalid_value" if message.startswith("Invalid enum value") else "invalid_type"


def _refuse_nul(value: object, path: str = "") -> None:
    if isinstance(value, str) and "\0" in value:
        raise DecodeFailure("Text must not contain the NUL character.", path or None, "invalid_text")
    if isinstance(value, list):
        for index, element in enumerate(value):
            _refuse_nul(element, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, element in value.items():
            if "\0" in key:
                raise DecodeFailure("Keys must not contain the NUL character.", path or None, "invalid_text")
            _refuse_nul(element, f"{path}.{key}" if path else key)
