"""Decodes request bodies into typed values; every error is a `DecodeFailure` with the path of the mistake.

Hostile JSON raises more than msgspec's errors: RecursionError for deep nesting, UnicodeDecodeError for
invalid UTF-8. NUL characters are refused because Postgres' text cannot store them.
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
"""OpenAI's error codes for values out of bounds, by msgspec's type name."""
_ERROR_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$")


def decode(
    data: bytes, kind: type[T], max_values: int = MAX_VALUES, *, endpoint: Endpoint | None = None
) -> T:
    """Decodes one JSON document of type `kind` with at most `max_values` values. Raises DecodeFailure.

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
    """Converts builtins (dicts, lists, scalars) to `kind`. Raises DecodeFailure with paths under `param`."""
    try:
        return convert_to(value, kind)
    except msgspec.ValidationError as error:
        raise _decode_failure(error, param) from error


def _decode_failure(error: msgspec.ValidationError, prefix: str = "") -> DecodeFailure:
    text = str(error)
    match = _ERROR_PATH.search(text)
    path = match["path"] if match else ""
    message = text[: match.start()] if match else text
    if missing := re.search(r"missing required field `([^`]+)`", message):
        path = f"{path}.{missing[1]}" if path else missing[1]
    param = f"{prefix}{'.' if prefix and path and not path.startswith('[') else ''}{path}"
    where = f" (at {param})" if param else ""
    return DecodeFailure(f"{message}{where}.", param or None, _code(message))


def _code(message: str) -> str:
    """OpenAI's error code for a message of msgspec."""
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
