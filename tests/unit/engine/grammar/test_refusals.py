"""Refused grammars: those whose compile takes too much, and what is kept of refused ones."""

import gc
import os
import resource
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.request import RequestRefused, StructuredOutput
from tests.support.grammars import VOCABULARY, grammar, schema


def patterns(count: int, join: Callable[[list[Any]], dict[str, Any]]) -> dict[str, Any]:
    return join([{"type": "string", "pattern": f"x{n}y"} for n in range(count)])


DOUBLING = {
    "patterns of one value": schema(patterns(40, lambda all_: {"allOf": all_})),
    "patterns of one value by reference": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(n): {"pattern": f"x{n}y", "$ref": f"#/$defs/{n + 1}"} for n in range(40)},
                "40": {"type": "string"},
            },
        }
    ),
    "patterns of one value in alternatives": schema(
        patterns(40, lambda all_: {"allOf": [{"anyOf": [one, {"type": "null"}]} for one in all_]})
    ),
    "multiples of one value": schema(
        {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 101, 103, 107)]}
    ),
    "patterns of names": schema(
        {"type": "object", "patternProperties": {f"^a{n}b$": {"type": "integer"} for n in range(300)}}
    ),
    "patterns that a lark grammar joins": grammar(
        "lark", "start: A\nA: " + " & ".join(f"/.*a.{{{200 + n}}}b.*/" for n in range(12))
    ),
    "forty patterns that a lark grammar joins": grammar(
        "lark", "start: A\nA: " + " & ".join(f"/.*x{n}y.*/" for n in range(40))
    ),
    "optional properties": schema(
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(9_000)}}
    ),
    "patterns within references": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(n): {"type": "array", "items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(5_000)},
                "5000": {"allOf": [{"pattern": f"x{n}y"} for n in range(40)]},
            },
        }
    ),
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, compile_seconds=60)  # the machine of a test has other work
    yield made
    made.close()


@pytest.mark.parametrize("name", DOUBLING)
def test_a_grammar_whose_parts_multiply_is_refused_and_the_next_one_is_compiled(
    compiler: GrammarCompiler, name: str
) -> None:
    compiler.compiled(grammar("json_object"), name)
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(RequestRefused) as refusal:
        compiler.compiled(DOUBLING[name])
    assert refusal.value.reason == "bad_grammar"
    assert time.process_time() - begun < 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 50_000
    compiler.compiled(grammar("regex", f"of the next request: {name}"))


@pytest.fixture
def one_process() -> Iterator[tuple[GrammarCompiler, int]]:
    """A compiler with one process, which runs, and the process's id; all of its processes end with it."""
    if sys.platform != "linux":
        pytest.skip("finds the process in /proc")
    before = trial_processes()
    compiler = GrammarCompiler(VOCABULARY, threads=1, compile_seconds=60)
    compiler.compiled(grammar("regex", "a"))
    (process,) = trial_processes() - before
    yield compiler, process
    compiler.close()
    assert not trial_processes() - before


def test_a_process_that_was_ended_from_outside_is_started_anew(
    one_process: tuple[GrammarCompiler, int],
) -> None:
    compiler, process = one_process
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    compiler.compiled(grammar("regex", "b"))
    assert process not in trial_processes()


def test_a_grammar_whose_process_is_ended_from_outside_may_be_sent_again(
    one_process: tuple[GrammarCompiler, int],
) -> None:
    compiler, process = one_process
    os.kill(process, signal.SIGSTOP)
    killer = threading.Timer(0.5, os.kill, (process, signal.SIGKILL))
    killer.start()
    with pytest.raises(RequestRefused) as refusal:
        compiler.compiled(grammar("regex", "b"))
    assert refusal.value.reason == "overloaded"
    killer.join()
    compiler.compiled(grammar("regex", "b"))


def test_a_supervisors_signal_to_all_processes_of_the_server_ends_no_compile(
    one_process: tuple[GrammarCompiler, int],
) -> None:
    compiler, process = one_process
    os.kill(process, signal.SIGTERM)
    compiler.compiled(grammar("regex", "b"))
    assert process in trial_processes()


def test_a_grammar_that_no_process_can_be_started_for_may_be_sent_again() -> None:
    compiler = GrammarCompiler(VOCABULARY, compile_seconds=60)
    compiler.load_tokenizer()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(RequestRefused) as refusal:
            compiler.compiled(grammar("regex", "a"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refusal.value.reason == "overloaded"
    compiler.compiled(grammar("regex", "a"))
    compiler.close()


def trial_processes() -> set[int]:
    """The ids of this process's children that compile grammars."""
    children = " ".join(file.read_text() for file in Path("/proc/self/task").glob("*/children")).split()
    return {
        int(child)
        for child in children
        if b"engine.grammar.compile_process" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


class Text(str):
    """Text of which can be seen whether anything still refers to it."""


def test_of_a_refused_grammar_nothing_is_kept_but_the_sentence_and_refusals_alone_are_evicted() -> None:
    compiler = GrammarCompiler(VOCABULARY, cache_bytes=2**20)
    texts: list[weakref.ref[Text]] = []

    def refuse(pattern: str) -> None:
        text = Text(pattern)
        texts.append(weakref.ref(text))
        with suppress(RequestRefused):
            compiler.compiled(StructuredOutput(kind="regex", text=text))

    for n in range(100):
        refuse("(")
        refuse(f"({n}")
    compiler.close()
    gc.collect()
    assert [text() for text in texts if text() is not None] == []
    assert compiler.size <= 2**20
