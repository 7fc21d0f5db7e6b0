import json
from typing import Any

import pytest

from server.wire.bounds import MOST_NUMBERS, MOST_VALUES
from server.wire.decode import decode
from server.wire.errors import DecodeFailure

PADDING = b" " * (MOST_VALUES + 1)


def code_of(data: bytes) -> str | None:
    with pytest.raises(DecodeFailure) as raised:
        decode(data, dict[str, Any])
    return raised.value.code


MANY = MOST_VALUES + 1


@pytest.mark.parametrize(
    "data",
    [
        b"{" + b",".join(b'"%d":1' % n for n in range(MANY)) + b"}",
        b"{" + b",".join(b'"%d" : 1' % n for n in range(MANY)) + b"}",
        b'{"a":[' + b",".join([b"{}"] * MANY) + b"]}",
        b'{"a":[' + b",".join([b"[]"] * MANY) + b"]}",
        b'{"a":[' + b",".join([b'""'] * MANY) + b"]}",
        b'{"a":[' + b",".join([rb'"\"\\"'] * MANY) + b"]}",
        b'{"a":[' + b",".join([b"1"] * (MOST_NUMBERS + 2)) + b"]}",
        b'{"a":"' + rb"\"" * MANY + b'","b":[' + b",".join([b"{}"] * MANY) + b"]}",
    ],
)
def test_a_document_of_too_many_values_is_refused_before_it_is_decoded(data: bytes) -> None:
    json.loads(data)
    assert code_of(data) == "too_many_values"


@pytest.mark.parametrize(
    "text",
    ['"' * MANY, "{[" * MANY, "," * (MOST_NUMBERS + 1), '\\"{' * MANY, "\\" * MANY, '{"a":[1,2]},' * MANY],
)
def test_what_is_in_a_string_is_one_value(text: str) -> None:
    data = json.dumps({"a": text}).encode()
    assert decode(data, dict[str, Any]) == {"a": text}


def test_as_many_as_are_allowed_are_read() -> None:
    data = json.dumps({"a": [[]] * (MOST_VALUES - 8), "b": ["x"] * (MOST_VALUES - 8), "c": [1] * 10}).encode()
    assert len(decode(data, dict[str, Any])["a"]) == MOST_VALUES - 8


def test_a_short_document_is_not_counted() -> None:
    assert decode(b'{"a":1}' + PADDING, dict[str, Any]) == {"a": 1}
