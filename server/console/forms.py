"""The console's forms: fields of the admin API's requests, and requests read from what a form sends. Pure.

An empty field is null where a request may have that, and else left out. Lists have a name a line.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from server.administration.options_and_form_fields import (
    Kind,
    RequestField,
    fields_of,
    read_request,
    read_time,
)
from server.errors import InvalidRequest
from server.protocol.administration.requests import LimitFields

S = TypeVar("S", bound=Struct)
Form = Mapping[str, str]

MAX_DIGITS = 19


class FormField(NamedTuple):
    """A field of a form, with the value that it begins with."""

    name: str
    kind: Kind
    label: str
    choices: tuple[str, ...]
    value: Any
    """A text, a list for names and choices, a bool for a flag."""


def form_fields(request: type[Struct], values: Mapping[str, Any], *left_out: str) -> list[FormField]:
    """The fields of a request without those left out; limits come last."""
    fields = [field for field in fields_of(request).values() if field.name not in left_out]
    fields.sort(key=lambda field: field.name in LimitFields.__struct_fields__)
    return [_form_field(field, values.get(field.name)) for field in fields]


def _form_field(field: RequestField, value: Any) -> FormField:
    label = field.describe("empty") + (", one a line" if field.kind == "names" else "")
    if field.kind == "time" and value is not None:
        value = f"{datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%M:%S}"
    return FormField(field.name, field.kind, label, field.choices, "" if value is None else value)


def read_form(form: Form, request: type[S], **values: object) -> S:
    """The request that a form sends, with `values` for its other fields. Raises InvalidRequest."""
    for field in fields_of(request).values():
        if field.name in values:
            continue
        value = _read_field(form, field)
        if value is not None or field.is_nullable:
            values[field.name] = value
    return read_request(values, request)


def _read_field(form: Form, field: RequestField) -> object:
    name, text = field.name, form.get(field.name, "").strip()
    match field.kind:
        case "flag":
            return name in form
        case "choices":
            return [choice for choice in field.choices if f"{name}_{choice}" in form]
        case "names":
            return [line.strip() for line in text.splitlines() if line.strip()] or None
        case "number":
            return whole_number(form, name)
        case "time":
            return read_time(text, name) if text else None
        case "text" | "tenant" if not field.is_nullable:
            return text
        case _:
            return text or None


def whole_number(form: Form, name: str) -> int | None:
    """A field's number; None for an empty one. Raises InvalidRequest."""
    text = form.get(name, "").strip()
    digits = text.removeprefix("-")
    if not text:
        return None
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS):
        raise InvalidRequest(f"{name} is a whole number, or empty.", param=name)
    return int(text)
