"""Fields of the admin API's requests, of which command options and forms are made; requests read and applied.

So the API, the commands and the console check the same things in the same words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec import inspect as kinds

from server.caller import check_tenant
from server.errors import InvalidRequest
from server.protocol.administration.requests import MAX_COUNT, MAX_DECIMALS, MAX_UNIX_SECONDS
from server.protocol.decode import decode

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

Kind = Literal["text", "tenant", "number", "amount", "time", "flag", "names", "choice", "choices"]
"""`names` are any, `choices` some of those that there are, `tenant` is a tenant's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    name: str
    kind: Kind
    description: str
    """A sentence, in which `null` stands for the value that is none."""
    is_nullable: bool
    is_required: bool
    choices: tuple[str, ...]
    bounds: str
    """The end of a sentence that begins with the field's name."""

    def describe(self, null: str) -> str:
        """The description for people who give no value by `null`; without a full stop."""
        return self.description.removesuffix(".").replace("null", null)


@cache
def fields_of(request: type[Struct]) -> Mapping[str, RequestField]:
    described = kinds.type_info(request)
    assert isinstance(described, kinds.StructType)
    return {
        field.name: _field(field)
        for field in described.fields
        if isinstance(field.type, kinds.Metadata) and field.type.extra_json_schema
    }


def _field(field: kinds.Field) -> RequestField:
    assert isinstance(field.type, kinds.Metadata)
    inner, is_nullable, marked = field.type.type, False, None
    if isinstance(inner, kinds.UnionType):
        is_nullable = any(isinstance(kind, kinds.NoneType) for kind in inner.types)
        (inner,) = (kind for kind in inner.types if not isinstance(kind, kinds.NoneType))
    while isinstance(inner, kinds.Metadata):
        marked = (inner.extra or {}).get("kind", marked)
        inner = inner.type
    kind, choices, bounds = _kind(inner)
    kind = marked or (field.type.extra or {}).get("kind", kind)
    return RequestField(
        name=field.name,
        kind=kind,
        description=(field.type.extra_json_schema or {})["description"],
        is_nullable=is_nullable,
        is_required=field.required,
        choices=choices,
        bounds=_MARKED_BOUNDS.get(kind, bounds),
    )


_MARKED_BOUNDS: Final = {
    "amount": f"is from 0 to {MAX_COUNT - 1}, with at most {MAX_DECIMALS} decimals",
    "time": "is a time from 1970 to 2999",
}


def _kind(inner: kinds.Type) -> tuple[Kind, tuple[str, ...], str]:
    match inner:
        case kinds.BoolType():
            return "flag", (), "is yes or no"
        case kinds.IntType(ge=low, le=high):
            return "number", (), f"is from {low} to {high}"
        case kinds.LiteralType(values=values):
            names = tuple(map(str, values))
            return "choice", names, f"is one of {', '.join(names)}"
        case kinds.ListType(item_type=kinds.LiteralType(values=values)):
            names = tuple(map(str, values))
            return "choices", names, f"are one or more of {', '.join(names)}"
        case kinds.ListType(min_length=low, max_length=high):
            return "names", (), f"is {low} to {high} names"
        case kinds.StrType(min_length=low, max_length=high):
            return "text", (), f"has {low or 0} to {high} characters"
    raise AssertionError(inner)


def read_request(values: Mapping[str, Any], request: type[S]) -> S:
    """The request with these values. Raises InvalidRequest, which names the field."""
    try:
        return decode(msgspec.json.encode(values), request)
    except InvalidRequest as failure:
        field = fields_of(request).get((failure.param or "").partition("[")[0])
        if field is not None and field.kind == "tenant":
            check_tenant(str(values.get(field.name)))
        sentence = str(failure) if field is None else f"{field.name} {field.bounds}."
        raise InvalidRequest(sentence, param=failure.param) from failure


def with_request(value: T, request: Struct) -> T:
    """The dataclass with those fields replaced that the request has, also those of nested dataclasses."""
    changed: dict[str, Any] = {}
    for field in fields(value):  # type: ignore[arg-type]  # T is a dataclass
        own = getattr(value, field.name)
        if hasattr(own, "__dataclass_fields__"):
            changed[field.name] = with_request(own, request)
        elif (sent := getattr(request, field.name, UNSET)) is not UNSET:
            changed[field.name] = _stored_form(field.name, sent)
    return replace(value, **changed)  # type: ignore[type-var]


def _stored_form(name: str, sent: Any) -> object:
    check_printable(sent, name)
    if name == "budget_cost" and sent is not None:
        return Decimal(sent)
    if name == "expires_at" and sent is not None:
        return time_of(sent)
    return frozenset(sent) if isinstance(sent, list) else sent


def check_printable(sent: object, name: str) -> None:
    """Raises InvalidRequest for a text, or a list of texts, with other characters."""
    texts = sent if isinstance(sent, list) else [sent]
    if not all(text.isprintable() for text in texts if isinstance(text, str)):
        raise InvalidRequest(f"{name} has printable characters only.", param=name)


def time_of(unix_seconds: int) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)


def read_time(text: str, name: str) -> int:
    """The Unix seconds of a time in ISO 8601, in UTC unless it says otherwise. Raises InvalidRequest."""
    try:
        time = datetime.fromisoformat(text)
        seconds = int(time.replace(tzinfo=time.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        seconds = -1
    if not 0 <= seconds <= MAX_UNIX_SECONDS:
        raise InvalidRequest(f"{name} is a time such as 2026-11-30T12:00, in UTC.", param=name)
    return seconds
