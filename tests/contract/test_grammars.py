"""What every engine promises of requests with a grammar, whatever computes its tokens."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.request import EngineRequest, Failed, Finished, Outbound, RequestRefused, Tokens
from engine.scripted_engine import Script
from tests.contract import llama_server, vllm_server
from tests.support.engines import Bench, Outcome, make_request, start_model, start_scripted
from tests.support.grammars import (
    CALL,
    END,
    SIZE,
    TOKENS,
    VOCABULARY,
    fits,
    grammar,
    ids_of,
    readable_model,
    schema,
    text_of,
)
from tests.support.rounds import example_count

Start = Callable[..., Bench]


def start_scripted_spelling(**more: Any) -> Bench:
    return start_scripted(
        **{
            "vocabulary": tuple(range(2, SIZE)),
            "vocab_size": SIZE,
            "spelling": VOCABULARY,
            "context_length": 1024,
            "script": Script(length=20),
            **more,
        }
    )


STARTS: dict[str, Start] = {
    "scripted": start_scripted_spelling,
    "model": lambda **more: start_model(readable_model(), **more),
    "as on a GPU": lambda **more: start_model(readable_model(), decode="static", pipelined=True, **more),
}
if llama_server.IS_BUILT:
    STARTS[llama_server.NAME] = llama_server.start(readable_model)
if vllm_server.IS_WANTED:
    STARTS[vllm_server.NAME] = vllm_server.start(readable_model)


@pytest.fixture(params=STARTS, scope="module")
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    started: list[Bench] = []

    def start_one(**more: Any) -> Bench:
        started.append(STARTS[request.param](**more))
        return started[-1]

    yield start_one
    for bench in started:
        bench.engine.close(drain=False)


@pytest.fixture(scope="module")
def bench(start: Start) -> Bench:
    """One engine for many requests, which must not disturb each other."""
    return start()


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

numbers = iter(range(10**9))


def constrained(wanted: Any, max_tokens: int = 200, **fields: Any) -> EngineRequest:
    defaults = {"temperature": 1.0, "seed": 7, "stop_ids": frozenset({END}), "grammar": wanted}
    return make_request(f"g{next(numbers)}", ids_of("Say it."), max_tokens, **{**defaults, **fields})


def stopped(outcome: Outcome) -> bool:
    return isinstance(outcome.last, Finished) and outcome.last.reason == "stop"


# What comes out


def test_a_schema_is_kept_and_the_request_ends_when_its_value_is_whole(bench: Bench) -> None:
    outcomes = bench.run(*(constrained(schema(PERSON), seed=seed) for seed in range(12)))
    assert all(stopped(outcome) for outcome in outcomes)
    values = [json.loads(text_of(outcome.tokens)) for outcome in outcomes]
    assert all(fits(value, PERSON) for value in values)
    assert len({json.dumps(value) for value in values}) > 6, "one answer for all proves little"


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 5)),
        st.builds(
            lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b},
            st.integers(-50, 50),
            st.integers(0, 900),
        ),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"enum": ["x", 1, None, 'q"\\', "日"]}]),
    )


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text('abcde_ \n"é', min_size=1, max_size=4)

    def as_object(properties: dict[str, Any], optional: int) -> dict[str, Any]:
        required = list(properties)[optional:]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    return st.one_of(
        st.builds(as_object, st.dictionaries(names, inner, max_size=4), st.integers(0, 4)),
        st.builds(
            lambda each, a, b: {"type": "array", "items": each, "minItems": a, "maxItems": a + b},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
    )


@settings(
    max_examples=example_count(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(wanted=st.recursive(leaves(), nested, max_leaves=6), seed=st.integers(0, 2**32))
def test_whatever_ends_with_stop_fits_its_schema(bench: Bench, wanted: dict[str, Any], seed: int) -> None:
    (outcome,) = bench.run(constrained(schema(wanted), 300, seed=seed))
    assert isinstance(outcome.last, Finished)
    if outcome.last.reason == "stop":
        assert fits(json.loads(text_of(outcome.tokens)), wanted)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        (grammar("regex", r"[ab]{3,9}/\d"), r"[ab]{3,9}/\d"),
        (grammar("lark", 'start: word ("," word)* "."\nword: /[a-c]{2}/'), r"[a-c]{2}(,[a-c]{2})*\."),
        (
            grammar(
                "lark", 'start: j ";" l\nj: %json {"enum": ["//", 7]}\nl: %lark {\nstart: A\nA: /[ab]/\n}'
            ),
            r'("//"|7);[ab]',
        ),
        (grammar("json_object"), r"(?s)\{.*\}"),
        (schema({"const": {"a": [1]}}), r'\{[ \n]*"a"[ \n]*:[ \n]*\[[ \n]*1[ \n]*\][ \n]*\}'),
    ],
    ids=["regex", "lark", "lark of others", "json_object", "const"],
)
def test_each_kind_of_grammar_is_kept(bench: Bench, wanted: Any, pattern: str) -> None:
    for outcome in bench.run(*(constrained(wanted, 400, seed=seed) for seed in range(6))):
        if stopped(outcome):
            assert re.fullmatch(pattern, text_of(outcome.tokens))


def test_a_structural_tag_holds_from_its_trigger_on(bench: Bench) -> None:
    inner = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
    tags = {
        "triggers": ["<call", TOKENS[CALL]],
        "tags": [
            {"begin": "<call a>", "schema": inner, "end": "</a>"},
            {"begin": TOKENS[CALL] + "b:", "regex": "[xyz]{2}", "end": ";"},
        ],
        "at_least_one": True,
        "stop_after_first": True,
    }
    outcomes = bench.run(*(constrained(grammar("structural_tags", tags), 400, seed=s) for s in range(24)))
    texts = [text_of(outcome.tokens) for outcome in outcomes if stopped(outcome)]
    assert len(texts) > 8
    for text in texts:
        assert re.search(r"(<call a>\s*\[.*\]</a>|<\|call\|>b:[xyz]{2};)\Z", text, re.DOTALL), text


# What it meets


def test_a_request_without_a_grammar_has_the_same_tokens_beside_one_with(bench: Bench) -> None:
    free = [constrained(None, 60, seed=seed, top_p=0.9) for seed in range(4)]
    alone = [outcome.tokens for outcome in bench.run(*free)]
    mixed = [constrained(schema(PERSON), seed=seed) for seed in range(4)]
    beside = bench.run(*(replace(request, request_id=request.request_id + "b") for request in free), *mixed)
    assert [outcome.tokens for outcome in beside[:4]] == alone


def test_the_grammar_comes_before_min_tokens_and_ignore_eos(bench: Bench) -> None:
    wanted = schema({"enum": ["a"]})
    outcomes = bench.run(
        constrained(wanted, min_tokens=50),
        constrained(wanted, ignore_eos=True),
    )
    assert all(stopped(outcome) for outcome in outcomes)
    assert [text_of(outcome.tokens) for outcome in outcomes] == ['"a"', '"a"']


def test_a_constrained_request_continues_when_it_is_cut_at_any_token(bench: Bench) -> None:
    whole = constrained(schema(PERSON))
    (outcome,) = bench.run(whole)
    assert stopped(outcome)
    rests = [
        replace(
            whole,
            request_id=f"{whole.request_id} cut {n}",
            prompt=(*whole.prompt, *outcome.tokens[:n]),
            output_offset=n,
            max_tokens=whole.max_tokens - n,
        )
        for n in range(1, len(outcome.tokens))
    ]
    for n, rest in enumerate(bench.run(*rests), start=1):
        assert rest.tokens == outcome.tokens[n:]


def test_a_constrained_request_is_unchanged_when_little_memory_makes_it_start_again(start: Start) -> None:
    requests = [constrained(schema(PERSON), 100, seed=seed) for seed in range(4)]
    roomy = start().run(*requests)
    tight = start(kv_blocks=9).run(*requests)
    assert [outcome.tokens for outcome in tight] == [outcome.tokens for outcome in roomy]


# What goes wrong


def test_only_the_request_fails_whose_earlier_output_is_not_of_its_grammar(bench: Bench) -> None:
    wanted = schema({"enum": ["a"]})
    prompt = ids_of("Say it.xx")
    good, bad = bench.run(
        constrained(wanted),
        replace(constrained(wanted), prompt=tuple(prompt), output_offset=2),
    )
    assert stopped(good)
    assert isinstance(bad.last, Failed)
    assert bad.last.code == "engine_error"
    assert "grammar" in bad.last.message


def test_only_the_request_fails_whose_stop_id_is_what_its_grammar_needs(bench: Bench) -> None:
    wanted = schema({"enum": ["a"]})
    bad, good = bench.run(constrained(wanted, stop_ids=frozenset({END, ids_of("a")[0]})), constrained(wanted))
    assert stopped(good)
    assert isinstance(bad.last, Failed)
    assert "allows no token" in bad.last.message


@pytest.mark.parametrize(
    "refused",
    [
        constrained(schema("{")),
        constrained(schema({"type": "nothing"})),
        constrained(grammar("regex", "(")),
        constrained(grammar("lark", "start: end")),
        constrained(grammar("structural_tags", {"tags": []})),
        constrained(grammar("nonsense", "")),  # type: ignore[arg-type]
        constrained(grammar("regex", "\ud800")),
        constrained("a grammar"),
        constrained(schema(PERSON), stop_ids=frozenset()),
    ],
    ids=lambda refused: str(refused.grammar)[:60],
)
def test_a_bad_grammar_is_refused_with_a_sentence(bench: Bench, refused: EngineRequest) -> None:
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.submit(refused)
    assert refusal.value.reason == "bad_grammar"
    assert len(str(refusal.value)) > 20


def test_a_grammar_is_refused_when_the_tokens_spell_nothing() -> None:
    bench = start_scripted()
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.check(make_request("a", [1], stop_ids=frozenset({0}), grammar=schema(PERSON)))
    assert refusal.value.reason == "bad_grammar"
    bench.engine.close(drain=False)


def test_a_cancelled_request_with_a_grammar_ends(bench: Bench) -> None:
    request = constrained(grammar("regex", "a*"), 500, stop_ids=frozenset({END}), temperature=0.0)

    def cancel(message: Outbound) -> None:
        if isinstance(message, Tokens) and message.request_id == request.request_id:
            bench.engine.cancel(request.request_id)

    bench.listener.when_told = cancel
    (outcome,) = bench.run(request)
    bench.listener.when_told = lambda _message: None
    assert isinstance(outcome.last, Finished)
