"""Types are prepared for decoding by one thread at a time."""

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from server.protocol import typed
from server.protocol.typed import convert_to, decode_as

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
        assert typed._preparing.locked()
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


@pytest.mark.parametrize("folder", ["server", "engine", "runner"])
def test_no_other_module_gives_msgspec_a_type_while_threads_run(folder: str) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py")}
    found = {str(path): lines for path, text in sources.items() if (lines := types_passed(text))}
    assert set(found) <= {"server/protocol/typed.py"}


def test_a_type_that_is_passed_in_a_function_is_found() -> None:
    assert types_passed(
        "def f():\n  return msgspec.convert(x, type=T)\ny = msgspec.json.decode(x, type=T)"
    ) == [2]
