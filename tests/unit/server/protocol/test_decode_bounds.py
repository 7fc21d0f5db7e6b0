import json
from typing import Any

import pytest

from server.errors import InvalidRequest
from server.protocol.decode import (
    MAX_DECIMALS,
    MAX_DIGITS,
    MAX_STRINGS,
    MAX_TOKEN_VALUES,
    MAX_VALUES,
    PIECE_BYTES,
    check_size,
    decode,
)

PADDING = b" " * (MAX_STRINGS + 1)


def code_of(data: bytes) -> str | None:
    with pytest.raises(InvalidRequest) as raised:
        decode(data, dict[str, Any])
    return raised.value.code


MANY = MAX_STRINGS + 1
SEVERAL = MAX_DECIMALS + 1


@pytest.mark.parametrize(
    "data",
    [
        b"{" + b",".join(b'"%d":1' % n for n in range(MANY)) + b"}",
        b"{" + b",".join(b'"%d" : 1' % n for n in range(MANY)) + b"}",
        b'{"a":[' + b",".join([b"{}"] * MANY) + b"]}",
        b'{"a":[' + b",".join([b"[]"] * MANY) + b"]}",
        b'{"a":[' + b",".join([b'""'] * MANY) + b"]}",
        b'{"a":[' + b",".join([rb'"\"\\"'] * MANY) + b"]}",
        b'{"a":[' + b",".join([b"1"] * (MAX_VALUES + 2)) + b"]}",
        b'{"a":[' + b",".join([b"1e308"] * SEVERAL) + b"]}",
        b'{"a":[' + b",".join([b"1E-5"] * SEVERAL) + b"]}",
        b'{"a":[' + b",".join([b"0.5"] * SEVERAL) + b"]}",
        b'{"a":[true,false,' + b",".join([b"0.5"] * SEVERAL) + b"]}",
        b'{"a":"' + b" " * MANY + b'","b":' + b"12345678901" * (MAX_DIGITS // 11 + 1) + b"}",
        b'{"a":"' + rb"\"" * MANY + b'","b":[' + b",".join([b"{}"] * MANY) + b"]}",
    ],
)
def test_a_document_of_too_many_values_is_refused_before_it_is_decoded(data: bytes) -> None:
    json.loads(data)
    assert code_of(data) == "too_many_values"


@pytest.mark.parametrize(
    "text",
    [
        "1e308," * MANY,
        "1" * MANY,
        '"' * MANY,
        "{[" * MANY,
        "," * (MAX_VALUES + 1),
        '\\"{' * MANY,
        "\\" * MANY,
        "\\" * 3 * PIECE_BYTES,
        "\\" * (3 * PIECE_BYTES + 1) + '"',
        '{"a":[1,2]},' * MANY,
    ],
)
def test_what_is_in_a_string_is_one_value(text: str) -> None:
    data = json.dumps({"a": text}).encode()
    assert decode(data, dict[str, Any]) == {"a": text}


def test_as_many_as_are_allowed_are_read() -> None:
    data = json.dumps({"a": [[]] * (MAX_STRINGS - 8), "b": ["x"] * (MAX_STRINGS - 8), "c": [1] * 10}).encode()
    assert len(decode(data, dict[str, Any])["a"]) == MAX_STRINGS - 8


def test_a_short_document_is_not_counted() -> None:
    assert decode(b'{"a":1}' + PADDING, dict[str, Any]) == {"a": 1}


def test_words_are_no_numbers_with_an_exponent() -> None:
    data = json.dumps({"a": [True, False, None] * MAX_DECIMALS}).encode()
    assert len(decode(data, dict[str, Any])["a"]) == 3 * MAX_DECIMALS


def test_tokens_may_be_more_than_other_values() -> None:
    data = json.dumps({"a": [200_000] * MAX_VALUES}).encode()
    assert len(decode(data, dict[str, Any], MAX_TOKEN_VALUES)["a"]) == MAX_VALUES
    with pytest.raises(InvalidRequest):
        decode(json.dumps([1] * (MAX_TOKEN_VALUES + 2)).encode(), list[int], MAX_TOKEN_VALUES)


@pytest.mark.parametrize("shift", range(-4, 40))
def test_a_document_is_cut_within_no_escape(shift: int) -> None:
    text = "x" * (PIECE_BYTES - shift) + '\\"\\\\"' * 10 + "{" * MANY
    check_size(json.dumps([text, text]).encode())
    with pytest.raises(InvalidRequest):
        check_size(json.dumps([text, text]).encode() + b"," + b"{" * MANY)
