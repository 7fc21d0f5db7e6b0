"""Allowed tokens, bad words and the end of reasoning, as the tiny model that has them must follow them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.request import EngineRequest, Finished, RequestRefused, ThinkingBudget, Tokens
from engine.sampling.token_masks import ThinkingState
from tests.support.engines import Bench, make_prompt, make_request, start_model
from tests.support.grammars import CALL, END, SIZE, ids_of, readable_model, schema, text_of

PROMPT = [t % (SIZE - 2) + 2 for t in make_prompt(20)]
DIGITS = tuple(ids_of("0123456789"))
STEPS = ("ahead", "eager")


@pytest.fixture(params=STEPS)
def bench(request: pytest.FixtureRequest) -> Any:
    pipelined = {"pipelined": True, "decode": "static"} if request.param == "ahead" else {}
    started = start_model(readable_model(), **pipelined)
    yield started
    started.engine.close(drain=False)


def wishing(name: str, count: int = 20, **fields: Any) -> EngineRequest:
    return make_request(name, PROMPT, count, **{"stop_ids": frozenset({END}), **fields})


def tokens_of(bench: Bench, *requests: EngineRequest) -> list[list[int]]:
    return [outcome.tokens for outcome in bench.run(*requests)]


def has(tokens: Sequence[int], word: Sequence[int]) -> bool:
    return any(list(tokens[at : at + len(word)]) == list(word) for at in range(len(tokens)))


def test_only_allowed_tokens_are_drawn_and_neighbours_draw_as_alone(bench: Bench) -> None:
    free = wishing("free", temperature=1.0, seed=3)
    (alone,) = tokens_of(bench, free)
    bound = wishing("bound", temperature=1.0, seed=3, allowed_token_ids=DIGITS)
    greedy = wishing("greedy", allowed_token_ids=DIGITS[:1])
    drawn, zeros, beside = tokens_of(bench, bound, greedy, replace(free, request_id="beside"))
    assert set(drawn) <= set(DIGITS)
    assert len(drawn) == 20
    assert zeros == [DIGITS[0]] * 20
    assert beside == alone


def test_bad_words_do_not_come_whole_and_their_beginnings_may(bench: Bench) -> None:
    (free,) = tokens_of(bench, wishing("free"))
    words = (tuple(free[1:4]), tuple(free[5:7]), (free[8],))
    (drawn,) = tokens_of(bench, wishing("bound", bad_words=words))
    assert drawn[:3] == free[:3]  # up to where the first word would have been completed
    assert not any(has(drawn, word) for word in words)


def test_rules_hold_beside_a_grammar_which_says_where_the_answer_may_end(bench: Bench) -> None:
    grammar = schema({"type": "integer"})
    only = wishing("only", grammar=grammar, allowed_token_ids=tuple(ids_of("47")), temperature=1.0)
    without = wishing("without", grammar=schema({"enum": ["yes", "no"]}), bad_words=(tuple(ids_of("ye")),))
    forced = wishing("forced", grammar=schema({"enum": ["yes"]}), bad_words=(tuple(ids_of("y")),))
    told = [text_of(tokens) for tokens in tokens_of(bench, only, without, forced)]
    assert set(told[0]) <= set("47")
    assert told[1:] == ['"no"', '"yes"']  # a grammar comes before a bad word


def test_where_grammar_and_allowed_tokens_have_nothing_in_common_the_request_alone_fails(
    bench: Bench,
) -> None:
    stuck = wishing("stuck", grammar=schema({"type": "boolean"}), allowed_token_ids=DIGITS)
    fine = wishing("fine", allowed_token_ids=DIGITS)
    failed, ended = bench.run(stuck, fine)
    assert "none may come" in str(failed.last)
    assert isinstance(ended.last, Finished)


def test_stop_tokens_end_a_request_even_where_the_models_own_are_ignored(bench: Bench) -> None:
    (free,) = tokens_of(bench, wishing("free"))
    stop = free[6]
    fields: dict[str, Any] = {"stop_token_ids": frozenset({stop}), "ignore_eos": True}
    ended, held = bench.run(wishing("ended", **fields), wishing("held", **fields, min_tokens=12))
    assert ended.tokens == free[: free.index(stop) + 1]
    assert isinstance(ended.last, Finished)
    assert ended.last.reason == "stop"
    assert stop not in held.tokens[:12]


def test_likelihoods_of_named_tokens_are_those_that_a_longer_list_of_the_likeliest_has(bench: Bench) -> None:
    some = wishing("some", 6, logprobs=0, logprob_token_ids=(9, 2, 60))
    other = wishing("other", 6, logprobs=3)
    bench.run(some, other, wishing("most", 6, logprobs=20))

    def told(name: str) -> list[Any]:
        messages = [one for one in bench.listener.of(name) if isinstance(one, Tokens)]
        return [each for message in messages for each in message.logprobs or ()]

    assert [[token for token, _ in each.top] for each in told("some")] == [[9, 2, 60]] * 6
    assert [len(each.top) for each in told("other")] == [3] * 6
    for named, likely in zip(told("some"), told("most"), strict=True):
        assert named.chosen == pytest.approx(likely.chosen)
        known = dict(likely.top)
        least = min(known.values())
        for token, logprob in named.top:
            assert logprob == pytest.approx(known[token], abs=1e-4) if token in known else logprob <= least


def test_a_request_that_goes_on_behind_its_first_tokens_gives_the_rest(bench: Bench) -> None:
    (free,) = tokens_of(bench, wishing("free"))
    wishes: list[dict[str, Any]] = [
        {"allowed_token_ids": DIGITS, "temperature": 1.0, "seed": 5},
        {"bad_words": ((free[2], free[3]), (free[5],))},
        {"thinking_budget": thinking(4, start=(free[1],))},
        {"thinking_budget": thinking(3, open=True, spent=1)},
    ]
    whole = tokens_of(bench, *(wishing(f"whole{n}", **wish) for n, wish in enumerate(wishes)))
    for cut in (1, 2, 5, 7):
        rest = [
            make_request(
                f"rest{cut}-{n}",
                [*PROMPT, *tokens[:cut]],
                20 - cut,
                output_offset=cut,
                stop_ids=frozenset({END}),
                **wish,
            )
            for n, (wish, tokens) in enumerate(zip(wishes, whole, strict=True))
        ]
        assert tokens_of(bench, *rest) == [tokens[cut:] for tokens in whole]


def thinking(tokens: int, **fields: Any) -> ThinkingBudget:
    return ThinkingBudget(tokens=tokens, **{"start": (CALL,), "end": tuple(ids_of("<>")), **fields})


@pytest.mark.parametrize(("spent", "free"), [(0, 5), (2, 3), (9, 0)])
def test_reasoning_that_the_prompt_opened_is_closed_after_its_budget(
    bench: Bench, spent: int, free: int
) -> None:
    budget = thinking(5, open=True, spent=spent)
    (drawn,) = tokens_of(bench, wishing("a", thinking_budget=budget))
    assert drawn[free : free + 2] == ids_of("<>")
    assert len(drawn) > free + 2


def test_reasoning_that_the_output_opens_is_closed_after_its_budget_and_not_before_it_opens(
    bench: Bench,
) -> None:
    (before,) = tokens_of(bench, wishing("before", thinking_budget=thinking(0)))
    (free,) = tokens_of(bench, wishing("free"))
    assert before == free
    (drawn,) = tokens_of(bench, wishing("after", thinking_budget=thinking(2, start=tuple(free[1:3]))))
    assert drawn[:3] == free[:3]
    assert drawn[5:7] == ids_of("<>")


def test_reasoning_state_counts_what_is_thought_over_the_whole_output() -> None:
    state = ThinkingState(ThinkingBudget(tokens=3, start=(1,), end=(2,)), output=2)
    tokens = [1, 9]  # a mark in the prompt is none of the output's
    seen = []
    for token in (7, 1, 8, 8, 2, 7, 1, 8, 2, 1):
        tokens.append(token)
        state.advance(tokens)
        seen.append(state.forced)
    assert seen == [None, None, None, None, None, None, None, 2, None, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": (SIZE,)},
        {"allowed_token_ids": (1,) * 20_000},
        {"bad_words": ((),)},
        {"bad_words": ((1, -1),)},
        {"bad_words": ((1,),) * 1000},
        {"stop_token_ids": frozenset({SIZE})},
        {"logprob_token_ids": (SIZE,)},
        {"logprob_token_ids": (1,) * 129},
        {"thinking_budget": thinking(-1)},
        {"thinking_budget": thinking(1, end=())},
        {"thinking_budget": thinking(1, start=(SIZE,))},
    ],
    ids=str,
)
def test_tokens_that_the_model_does_not_have_are_refused(bench: Bench, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused):
        bench.engine.check(wishing("a", **fields))
