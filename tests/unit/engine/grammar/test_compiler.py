"""Compiling grammars: what is refused, how long it takes, what is kept; and the masks of tags."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.grammar.compile_process import TrialProcess
from engine.grammar.compiler import COMPILE_SECONDS, MAX_WAITING_PER_KEY, STACK_BYTES, GrammarCompiler
from engine.request import RequestRefused, StructuredOutput
from engine.sampling.token_masks import GrammarMatchers
from engine.vocabulary import Vocabulary
from tests.support.engines import make_request
from tests.support.eventually import eventually
from tests.support.grammars import END, TOKENS, VOCABULARY, grammar, ids_of, schema, sequence_of


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, compile_seconds=60)  # the machine of a test has other work
    yield made
    made.close()


def test_the_size_of_new_threads_stacks_is_changed_once_and_put_back(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = threading.stack_size()
    sizes: list[int] = []
    change = threading.stack_size

    def note(size: int = 0) -> int:
        sizes.append(size)
        return change(size)

    monkeypatch.setattr(threading, "stack_size", note)
    for text in ("a+", "b+", "c+"):
        compiler.compiled(grammar("regex", text))
    assert sizes == [STACK_BYTES, usual]
    assert change() == usual


# Refusals


def nested(levels: int) -> Any:
    inner: Any = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return inner


def deep_text(levels: int) -> str:
    return '{"type":"object","properties":{"a":' * levels + "{}" + "}}" * levels


HOSTILE = {
    "nested 65": schema(nested(65)),
    **{f"nested {levels}": schema(deep_text(levels)) for levels in (100, 400, 1_000, 10_000)},
    "a repetition of too many": grammar("regex", "a{99999999999999999999}"),
    "groups": grammar("regex", "(" * 5_000 + "a" + ")" * 5_000),
    "classes": grammar("regex", "[" * 400),
    "backslashes": grammar("regex", "\\" * 511),
    "lark groups": grammar("lark", "start: " + "(" * 5_000 + '"a"' + ")" * 5_000),
    "lark brackets": grammar("lark", "start: " + "[" * 5_000),
    "lark doublings": grammar(
        "lark", "start: T0\n" + "".join(f"T{n}: T{n + 1} T{n + 1}\n" for n in range(40)) + 'T40: "a"'
    ),
    "lark in circles": grammar("lark", "start: start"),
    "lark terminals in circles": grammar("lark", "start: A\nA: B\nB: A"),
    "lark schema": grammar("lark", "start: %json " + deep_text(65)),
    "lark string without end": grammar("lark", 'start: "a'),
    "lark with settings": grammar("lark", '%llguidance {"no_forcing": false}\nstart: "a"'),
    "lark schema in a lark": grammar("lark", "start: %lark { start: %json " + deep_text(400) + "}"),
    "lark without its schema": grammar("lark", "start: %json"),
    "lark with half a schema": grammar("lark", 'start: %json {"type": '),
    "larks in larks": grammar("lark", "start: %lark { " * 129 + 'start: "a"' + "}" * 129),
    "lark that is python": grammar("lark", "start: %python {}"),
    "reference to itself": schema({"$ref": "#"}),
    "references in circles": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "chain of references": schema(
        {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(4_000)}}
    ),
    "reference elsewhere": schema({"$ref": "http://169.254.169.254/schema"}),
    "reference to nothing": schema({"$ref": "#/nothing"}),
    "multiples": schema({"type": "integer", "multipleOf": 1234567891}),
    "alternatives of all": schema(
        {"allOf": [{"anyOf": [{"minimum": a * b} for a in range(90)]} for b in range(50)]}
    ),
    "nothing fits": schema({"type": "integer", "minimum": 5, "maximum": 3}),
    "false": schema("false"),
    "a number": schema("3"),
    "a keyword with another value": schema({"properties": []}),
    "a keyword that is not served": schema({"not": {}}),
    "an unknown format": schema({"type": "string", "format": "no such"}),
    "an unknown type": schema({"type": "strnig"}),
    "a bad pattern": schema({"type": "string", "pattern": "(["}),
    "tags without end": grammar("structural_tags", {"triggers": ["<"], "tags": [{"begin": "<a"}]}),
    "tags without trigger": grammar(
        "structural_tags", {"triggers": ["<"], "tags": [{"begin": "a", "schema": {}}]}
    ),
    "too many tags": grammar(
        "structural_tags",
        {"triggers": ["<"], "tags": [{"begin": f"<{n}", "schema": {}, "end": ">"} for n in range(129)]},
    ),
    "half a character": grammar("regex", "\ud800"),
    "half a character in a schema": schema('{"enum": ["\\ud800"]}'),
    "zero": grammar("lark", "\0"),
    "too long": schema(" " * 500_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_time(compiler: GrammarCompiler, name: str) -> None:
    begun = time.process_time()
    with pytest.raises(RequestRefused) as refusal:
        compiler.compiled(HOSTILE[name])
    assert refusal.value.reason == "bad_grammar"
    assert len(str(refusal.value)) > 20
    assert time.process_time() - begun < COMPILE_SECONDS


def strings(count: int, name: str, *, required: bool) -> dict[str, Any]:
    names = [f"{name}{n}" for n in range(count)]
    return {
        "type": "object",
        "properties": {each: {"type": "string"} for each in names},
        "required": names if required else [],
        "additionalProperties": False,
    }


def references(kind: str, count: int) -> dict[str, Any]:
    def wrap(inner: dict[str, Any]) -> dict[str, Any]:
        of_kind: dict[str, dict[str, Any]] = {
            "object": {"type": "object", "properties": {"a": inner}, "required": ["a"]},
            "anyOf": {"anyOf": [inner, {"type": "null"}]},
            "allOf": {"allOf": [inner, {"type": "object"}]},
        }
        return of_kind[kind]

    links = {str(n): wrap({"$ref": f"#/$defs/{n + 1}"}) for n in range(count)}
    return {"$ref": "#/$defs/0", "$defs": {**links, str(count): {"type": "object"}}}


def most_optional() -> dict[str, Any]:
    groups = {f"o{n}": strings(300, f"q{n}_", required=False) for n in range(16)}
    return {"type": "object", "properties": groups, "required": list(groups)}


WORST = {
    "nested": nested(10),
    "properties": strings(4_999, "p", required=True),
    "long names": strings(4_999, "x" * 18, required=True),
    "optional": most_optional(),
    "enum": {"enum": [f"v{n} " * 20 for n in range(1_000)]},
    "enum of arrays": {"enum": [[n] * 20 for n in range(1_000)]},
    "counts": {"type": "array", "minItems": 9_999, "items": {"type": "string", "minLength": 10_000}},
    "multiple": {"type": "number", "multipleOf": 9973},
    "branches": {"anyOf": [strings(1, f"k{n}_", required=True) for n in range(1_000)]},
    "chain of objects": references("object", 1_000),
    "chain of choices": references("anyOf", 1_000),
    "chain of unions": references("allOf", 1_000),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_legal_schema_compiles_in_time(compiler: GrammarCompiler, name: str) -> None:
    compiler.compiled(grammar("json_object"))
    begun = time.process_time()
    compiler.compiled(schema(WORST[name]))
    assert time.process_time() - begun < COMPILE_SECONDS


def test_a_schema_with_a_deep_chain_leaves_the_stack_of_other_threads_alone(
    compiler: GrammarCompiler,
) -> None:
    before = threading.stack_size()
    compiler.compiled(schema(WORST["chain of objects"]))
    assert threading.stack_size() == before


def test_a_panic_of_the_library_is_a_refusal(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(_tokenizer: object, _source: str) -> None:
        raise PanicException("it broke")

    monkeypatch.setattr("engine.grammar.compiler.make_matcher", panic)
    with pytest.raises(RequestRefused, match="it broke"):
        compiler.compiled(schema({}))


class Blocked:
    """A compiler with so many threads, which compiles nothing until it may `go_on`."""

    def __init__(self, threads: int, seconds: float = 60) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []
        self.compiler = GrammarCompiler(
            VOCABULARY,
            threads=threads,
            compile_seconds=seconds,
            queue_seconds=seconds,
            trial_process=self._waiting_process,
        )

    def _waiting_process(self, vocabulary: Vocabulary) -> TrialProcess:
        blocked = self

        class Waiting(TrialProcess):
            def source_of(self, grammar: StructuredOutput) -> str:
                blocked.begun.append(grammar.text)
                blocked.go_on.wait(60)
                return super().source_of(grammar)

        return Waiting(vocabulary)

    def refusal(self, pattern: str, fairness_key: str) -> str:
        with pytest.raises(RequestRefused) as refusal:
            self.compiler.compiled(grammar("regex", pattern), fairness_key)
        return refusal.value.reason


def test_a_compile_that_takes_too_long_is_refused_and_keeps_its_turn() -> None:
    blocked = Blocked(threads=2, seconds=0.05)
    reasons = [blocked.refusal("a", "one"), blocked.refusal("b", "one")]
    reasons += [blocked.refusal("c", "two"), blocked.refusal("d", "three")]
    blocked.go_on.set()
    assert reasons == ["bad_grammar", "share_full", "bad_grammar", "overloaded"]
    blocked.compiler.close()


def test_a_share_waits_for_one_compile_of_another_and_not_for_all_that_wait() -> None:
    blocked = Blocked(threads=1)
    wanted = [("greedy", f"g{n}") for n in range(5)] + [("modest", "m")]
    with ThreadPoolExecutor(len(wanted)) as callers:
        for count, (fairness_key, pattern) in enumerate(wanted):
            callers.submit(blocked.compiler.compiled, grammar("regex", pattern), fairness_key)
            turns = blocked.compiler.turns
            eventually(lambda: turns.waiting("greedy") + turns.waiting("modest") == count)  # noqa: B023
        blocked.go_on.set()
    assert blocked.begun.index("m") == 1
    assert len(blocked.begun) == 6
    blocked.compiler.close()


def test_more_grammars_of_a_share_than_may_wait_are_refused_at_once() -> None:
    blocked = Blocked(threads=1)
    patterns = [f"g{n}" for n in range(1 + MAX_WAITING_PER_KEY)]
    with ThreadPoolExecutor(len(patterns)) as callers:
        for pattern in patterns:
            callers.submit(blocked.compiler.compiled, grammar("regex", pattern), "one")
        eventually(lambda: blocked.compiler.turns.waiting("one") == MAX_WAITING_PER_KEY)
        assert blocked.refusal("a", "one") == "share_full"
        blocked.go_on.set()
    assert sorted(blocked.begun) == patterns
    blocked.compiler.close()


def test_a_grammar_that_another_share_uses_is_compiled_again(compiler: GrammarCompiler) -> None:
    first = compiler.compiled(grammar("regex", "abc"), "one")
    assert compiler.compiled(grammar("regex", "abc"), "two") is not first
    assert compiler.compiled(grammar("regex", "abc"), "one") is first


def test_a_request_is_followed_by_the_grammar_it_was_accepted_with_whatever_is_kept() -> None:
    compiler = GrammarCompiler(VOCABULARY, cache_bytes=1)
    sequence = sequence_of(make_request("a", [5], grammar=grammar("regex", "a")), compiler)
    compiler.compiled(grammar("regex", "b"))
    compiler.close()  # and compiles nothing more
    with pytest.raises(RequestRefused):
        compiler.compiled(grammar("regex", "a"))
    masks = GrammarMatchers(compiler).masks([sequence])
    assert masks is not None
    assert masks.failed == {}


# What is kept


def test_a_grammar_is_compiled_once_whoever_asks(compiler: GrammarCompiler) -> None:
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda _n: compiler.compiled(schema({"enum": [1, 2]})), range(16)))
    assert len(set(map(id, found))) == 1


def test_what_is_kept_stays_within_its_bytes_and_the_oldest_goes() -> None:
    compiler = GrammarCompiler(VOCABULARY, cache_bytes=2**20)
    first = compiler.compiled(grammar("regex", "first"))
    often = compiler.compiled(grammar("regex", "often"))
    for n in range(100):
        compiler.compiled(grammar("regex", f"number {n}"))
        assert compiler.compiled(grammar("regex", "often")) is often
        with pytest.raises(RequestRefused):
            compiler.compiled(grammar("regex", f"({n}"))
        assert compiler.size <= 2**20 + 2**17
    assert compiler.compiled(grammar("regex", "first")) is not first
    compiler.close()


def test_a_grammar_in_use_counts_for_what_it_has_worked_out(compiler: GrammarCompiler) -> None:
    compiled = compiler.compiled(grammar("regex", "(a|b)*a(a|b){9}"))
    before = compiled.size
    compiled.record_mask_time(0.01)
    assert compiled.size == before + 10**6
    compiled.record_mask_time(1e9)
    assert compiled.size < 256 * 2**20


def test_no_grammar_is_compiled_and_no_thread_left_when_it_is_closed(compiler: GrammarCompiler) -> None:
    before = set(threading.enumerate())
    kept = compiler.compiled(grammar("regex", "a"))
    compiler.close()
    assert compiler.compiled(grammar("regex", "a")) is kept
    with pytest.raises(RequestRefused) as refusal:
        compiler.compiled(grammar("regex", "b"))
    assert refusal.value.reason == "closed"
    assert set(threading.enumerate()) <= before


def test_neither_torch_nor_the_library_is_imported_before_a_grammar_comes() -> None:
    code = "import sys, engine.scripted_engine; print({'torch', 'llguidance', 'numpy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


@pytest.fixture
def _few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.grammar.matcher.MAX_STATES", 400)


@pytest.mark.usefixtures("_few_states")
def test_a_request_starts_anew_when_its_grammar_remembers_too_much(
    compiler: GrammarCompiler,
) -> None:
    wanted = grammar("regex", "(" + "|".join(f"{letter}{{150}}" for letter in "abcd") + ")")
    followers = GrammarMatchers(compiler)
    kept = compiler.compiled(wanted)
    told = []
    for letter in "abcd":  # each alone stays within the limit, all together do not
        request = make_request(letter, [5], stop_ids=frozenset({END}), grammar=wanted)
        sequence = sequence_of(request, compiler)
        current = compiler.compiled(wanted)
        current.record_mask_time(10.0)
        for _ in range(150):
            masks = followers.masks([sequence])
            assert masks is not None
            told.append(masks.failed)
            sequence.append(TOKENS.index(letter))
            eventually(lambda current=current: current.successor is not None)  # type: ignore[misc]
    assert told == [{}] * 600
    assert compiler.compiled(wanted) is not kept


@pytest.mark.usefixtures("_few_states")
def test_a_request_fails_when_it_alone_needs_more_than_a_grammar_may_remember(
    compiler: GrammarCompiler,
) -> None:
    followers = GrammarMatchers(compiler)
    wanted = grammar("regex", "a{1000}")
    sequences = [
        sequence_of(make_request("a", [5, *ids_of("a" * 999)], grammar=wanted, output_offset=999), compiler),
        sequence_of(make_request("b", [5], grammar=grammar("regex", "b")), compiler),
    ]
    masks = followers.masks(sequences)
    assert masks is not None
    assert list(masks.failed) == [0]
    assert "grammar failed" in masks.failed[0]
