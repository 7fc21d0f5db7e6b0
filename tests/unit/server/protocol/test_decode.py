import ast
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.protocol import decode as decode_module
from server.protocol.decode import convert, convert_to, decode, decode_as
from server.protocol.responses.input import read_input
from server.protocol.responses.request import CreateResponse
from tests.support.builders import examples, read_items

LEAST = {"model": "m", "input": "x"}

FIELDS = [*CreateResponse.__struct_fields__, "type", "role", "content", "text", "annotations", "summary"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner)
    ),
    max_leaves=12,
)


def attempt(data: bytes) -> InvalidRequest | None:
    """Reads a whole request; the failure if it is refused. Any other exception is the test's."""
    try:
        read_items(decode(data, CreateResponse).input)
    except InvalidRequest as failure:
        return failure
    return None


def refuse(body: bytes | dict[str, Any]) -> InvalidRequest:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(InvalidRequest) as caught:
        read_items(decode(data, CreateResponse).input)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"{}x",
        b"\xff\xfe",
        b'{"model": "\xff", "input": "x"}',
        b'{"model": "m", "input": "x", "other": NaN}',
        b'{"model": "m", "input": "x", "temperature": 1e999}',
        b'{"model": "m", "input": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "\\ud800", "input": "x"}',
        b'{"model": "\\udc00\\ud800", "input": "x"}',
        b'{"model": "a\x00b", "input": "x"}',
        b'{"model": "m", "input": "x", "other": ' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"model": "m", "input": "x", "other": ' + b'{"a":' * 100_000,
        b"[" * 5_000_000,
        b'\xef\xbb\xbf{"model": "m", "input": "x"}',
    ],
)
def test_hostile_bytes_are_refused_as_a_decode_failure(body: bytes) -> None:
    assert refuse(body).code in (
        "invalid_json",
        "invalid_type",
        "missing_required_parameter",
        "too_many_values",
    )


@pytest.mark.parametrize("depth", [10, 30, 31, 100, 700, *range(900, 1000, 5)])
def test_nested_annotations_are_refused_or_can_be_stored_from_any_depth_of_the_stack(depth: int) -> None:
    nested = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    part = b'{"type":"output_text","text":"a","annotations":[' + nested + b"]}"
    body = b'{"model":"m","input":[{"role":"assistant","content":[' + part + b"]}]}"

    def below(frames: int) -> None:
        if frames:
            return below(frames - 1)
        stored = msgspec.json.encode(items)
        msgspec.json.decode(stored)
        return None

    refused = attempt(body)
    assert (refused is not None) == (depth > 30)
    if refused is not None:
        return
    items = read_items(decode(body, CreateResponse).input)
    below(100)


@given(st.binary())
@examples(300)
def test_random_bytes_are_decoded_or_refused_and_nothing_else(data: bytes) -> None:
    failure = attempt(data)
    assert failure is None or str(failure)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values) | json_values)
@examples(200)
def test_random_json_is_decoded_or_refused_and_nothing_else(value: object) -> None:
    body = {**LEAST, **value} if isinstance(value, dict) else value
    try:
        data = msgspec.json.encode(body)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
        return
    failure = attempt(data)
    assert failure is None or str(failure)


@given(st.lists(json_values, max_size=3))
@examples(200)
def test_random_items_are_read_or_refused_and_nothing_else(elements: list[Any]) -> None:
    body = msgspec.json.encode({"model": "m", "input": [{"role": "user", "content": elements}, *elements]})
    failure = attempt(body)
    assert failure is None or failure.param is not None


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": 1}, "model", "invalid_type"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": [1]}, "input[0]", "invalid_type"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"role": "wizard", "content": ""}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}]}]},
            "input[0].summary[0].text",
            "missing_required_parameter",
        ),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
        ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"max_output_tokens": 1.5}, "max_output_tokens", "invalid_type"),
        ({"top_logprobs": -1}, "top_logprobs", "integer_below_min_value"),
        ({"seed": -(2**63) - 1}, "seed", "integer_below_min_value"),
        ({"seed": 2**63}, "seed", "integer_above_max_value"),
        ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"text": {"format": {"type": 1}}}, "text.format.type", "invalid_type"),
        ({"truncation": "maybe"}, "truncation", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"prompt_cache_key": "s" * 65}, "prompt_cache_key", "string_above_max_length"),
    ],
)
def test_a_mistake_is_named_by_its_path(change: dict[str, Any], param: str, code: str) -> None:
    failure = refuse({**LEAST, **change})
    assert (failure.param, failure.code) == (param, code)


@pytest.mark.parametrize("missing", ["model", "input"])
def test_a_missing_field_is_named(missing: str) -> None:
    failure = refuse({name: value for name, value in LEAST.items() if name != missing})
    assert failure.param == missing
    assert missing in str(failure)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"instructions": "a\0"}, "instructions"),
        ({"metadata": {"key": "\0"}}, "metadata.key"),
        ({"metadata": {"\0": ""}}, "metadata"),
        ({"unknown": ["", {"deep": "\0"}]}, "unknown[1].deep"),
        ({"input": [{"role": "user", "content": "\0"}]}, "input[0].content"),
    ],
)
def test_nul_is_refused_wherever_it_is(change: dict[str, Any], param: str) -> None:
    failure = refuse({**LEAST, **change})
    assert (failure.param, failure.code) == (param, "invalid_text")


def test_text_that_spells_an_escaped_nul_is_not_one() -> None:
    data = rb'{"model": "m", "input": "\\u0000"}'
    assert decode(data, CreateResponse).input == r"\u0000"


@given(st.dictionaries(st.text(string.ascii_letters, min_size=1), json_values, min_size=1))
@examples(40)
def test_unknown_fields_change_nothing(unknown: dict[str, Any]) -> None:
    extra = {f"x_{name}": value for name, value in unknown.items()}
    body = msgspec.json.encode({**extra, **LEAST})
    failure = attempt(body)
    if failure is not None:
        assert failure.code == "invalid_text"
        return
    assert decode(body, CreateResponse) == CreateResponse(model="m", input="x")


def test_null_means_the_default_in_every_optional_field() -> None:
    optional = set(CreateResponse.__struct_fields__) - set(LEAST)
    body = msgspec.json.encode({**LEAST, **dict.fromkeys(optional)})
    assert decode(body, CreateResponse) == CreateResponse(model="m", input="x")


def test_the_last_of_two_equal_keys_counts() -> None:
    assert decode(b'{"model": "a", "input": "x", "model": "b"}', CreateResponse).model == "b"


def test_a_path_inside_a_converted_value_begins_with_its_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert({"a": [1, "x"]}, dict[str, list[int]], "outer")
    assert caught.value.param == "outer[...][1]"


def test_an_unsupported_type_of_any_length_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_input([{"type": "x" * 10_000}])
    assert len(str(caught.value)) < 300


PREPARING, GO_ON = threading.Event(), threading.Event()


def an_integer() -> type[int]:
    """What an annotation below means; msgspec asks for it while it prepares the type."""
    PREPARING.set()
    assert GO_ON.wait(30)
    return int


class Inner(msgspec.Struct):
    x: "an_integer()"  # type: ignore[valid-type]


class Outer(msgspec.Struct):
    inner: Inner
    more: list[Inner] = []


def test_a_type_that_one_thread_prepares_is_met_by_no_other_before_it_is_ready() -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(decode_as, b'{"inner": {"x": 1}}', Outer)
        assert PREPARING.wait(30)
        second = threads.submit(convert_to, {"inner": {"x": 2}}, Outer)
        assert not second.done()
        assert decode_module._preparing.locked()
        GO_ON.set()
        assert (first.result(30).inner.x, second.result(30).inner.x) == (1, 2)


def test_what_is_no_value_of_the_type_is_refused_at_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\[0\]"):
        decode_as(b'["a"]', list[int])
    with pytest.raises(msgspec.ValidationError, match=r"\$\[0\]"):
        convert_to(["a"], list[int])


def types_passed(source: str) -> list[int]:
    """The lines in which msgspec is given a type other than while a module is imported."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    calls = {call for function in functions for call in ast.walk(function) if isinstance(call, ast.Call)}
    return [call.lineno for call in calls if passes_type(call)]


def passes_type(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    typed_call = name in ("msgspec.json.decode", "msgspec.convert") and len(call.args + call.keywords) > 1
    return typed_call or (name == "msgspec.json.Decoder" and bool(call.args + call.keywords))


@pytest.mark.parametrize("folder", ["server", "engine", "tool_servers"])
def test_no_other_module_gives_msgspec_a_type_while_threads_run(folder: str) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py")}
    found = {str(path): lines for path, text in sources.items() if (lines := types_passed(text))}
    assert set(found) <= {"server/protocol/decode.py"}


def test_a_type_that_is_passed_in_a_function_is_found() -> None:
    assert types_passed(
        "def f():\n  return msgspec.convert(x, type=T)\ny = msgspec.json.decode(x, type=T)"
    ) == [2]
