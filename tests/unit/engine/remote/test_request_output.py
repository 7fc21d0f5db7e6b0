"""One request over several calls: whatever the servers sample and lose, the output is what was requested."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.compiler import GrammarCompiler
from engine.remote.engine_protocol import AnswerChunk, CallFault, EngineFeatures, GenerateCall
from engine.remote.request_output import CALL_IDS, MAX_BARREN_CALLS, Generation, call_ids
from engine.remote.vllm_protocol import VllmProtocol
from engine.request import (
    EngineRequest,
    Failed,
    Finished,
    FinishReason,
    PromptLogprobs,
    ThinkingBudget,
    TokenLogprobs,
    Tokens,
)
from engine.sampling.token_masks import TokenMasks
from engine.scheduling.sequence import TokenSequence
from tests.support.engines import make_request
from tests.support.grammars import END, SIZE, VOCABULARY, fits, ids_of, schema, text_of
from tests.support.rounds import example_count

VLLM = VllmProtocol.features
PLAIN = replace(VLLM, grammars=False, max_allowed_token_ids=0, max_biases=None)
"""A server that applies no rules of its own."""

Sample = Callable[[GenerateCall], int]
PROMPT = [5, 6, 7]
PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 999}, "old": {"type": "boolean"}},
    "required": ["age", "old"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY)
    yield made
    made.close()


def begin(request: EngineRequest, compiler: GrammarCompiler, features: EngineFeatures = VLLM) -> Generation:
    compiled = None if request.grammar is None else compiler.compiled(request.grammar)
    sequence = TokenSequence(request, (), compiled)
    return Generation(sequence, features, TokenMasks(compiler, SIZE), SIZE)


def answer(call: GenerateCall, sample: Sample) -> Iterator[AnswerChunk]:
    """What a server that applies no grammar sends, a token a chunk."""
    if call.score_prompt:
        yield AnswerChunk(
            prompt_logprobs=(TokenLogprobs(-1.0),) * (len(call.tokens) - 1), finish_reason="length"
        )
        return
    tokens: list[int] = []
    while len(tokens) < call.max_tokens:
        so_far = replace(call, tokens=(*call.tokens, *tokens))
        if call.allowed_token_ids is not None:
            token_id = call.allowed_token_ids[sample(so_far) % len(call.allowed_token_ids)]
        elif (token_id := sample(so_far)) in call.banned_token_ids:
            token_id = next(other for other in range(2, SIZE) if other not in call.banned_token_ids)
        tokens.append(token_id)
        ended = token_id in call.request.stop_ids and len(tokens) > call.min_tokens
        last = "stop" if ended else "length" if len(tokens) == call.max_tokens else None
        logprobs = None if call.request.logprobs is None else (TokenLogprobs(-float(len(tokens))),)
        yield AnswerChunk(token_ids=(token_id,), logprobs=logprobs, finish_reason=last)  # type: ignore[arg-type]
        if ended:
            break
    yield AnswerChunk(cached_tokens=2)


def play(generation: Generation, sample: Sample, *, cut_after: int | None = None) -> list[GenerateCall]:
    """Runs the request to its end; the first call is lost after `cut_after` tokens."""
    calls: list[GenerateCall] = []
    while (call := generation.next_call()) is not None:
        calls.append(call)
        assert len(calls) < 500
        for number, chunk in enumerate(answer(call, sample)):
            if len(calls) == 1 and number == cut_after:
                break
            generation.receive(chunk)
            if generation.done or generation.call_over:
                break
        else:
            cut_after = None
        if not generation.done and not (len(calls) == 1 and cut_after is not None):
            generation.end_call()
        if generation.done:
            break
    return calls


def tokens_of(generation: Generation) -> list[int]:
    """The tokens that were delivered; they are those of the sequence."""
    sent = [
        one for message in generation.messages if isinstance(message, Tokens) for one in message.token_ids
    ]
    request = generation.sequence.request
    assert sent == generation.sequence.tokens[len(request.prompt) :]
    assert isinstance(generation.messages[-1], Finished | Failed)
    assert sum(isinstance(message, Finished | Failed) for message in generation.messages) == 1
    return sent


def pure(call: GenerateCall) -> int:
    """A token that the tokens before it decide."""
    return 2 + sum((index + 1) * token for index, token in enumerate(call.tokens)) % (SIZE - 2)


def test_a_request_is_one_call_when_nothing_happens(compiler: GrammarCompiler) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=6), compiler)
    (call,) = play(generation, pure)
    assert call.tokens == tuple(PROMPT)
    assert call.seed == generation.sequence.request.sampling.seed
    assert len(tokens_of(generation)) == 6
    assert generation.messages[-1] == Finished("a", "length", generation.sequence.usage)
    assert generation.sequence.usage.cached == 2


@given(cut_after=st.integers(0, 9))
@settings(max_examples=example_count(10), deadline=None)
def test_a_request_has_the_same_tokens_when_its_server_is_lost_at_any_token(
    compiler: GrammarCompiler, cut_after: int
) -> None:
    request = make_request("a", PROMPT, max_tokens=9)
    whole, cut = begin(request, compiler), begin(request, compiler)
    play(whole, pure)
    calls = play(cut, pure, cut_after=cut_after)
    assert tokens_of(cut) == tokens_of(whole)
    assert all(len(call.tokens) + call.max_tokens == len(PROMPT) + 9 for call in calls)


@pytest.mark.parametrize(("last", "count"), [("length", 6), ("stop", 4)])
def test_a_whole_output_needs_no_further_call_when_its_server_is_lost_before_the_usage(
    compiler: GrammarCompiler, last: FinishReason, count: int
) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=6, stop_ids=frozenset({END})), compiler)
    end_at = len(PROMPT) + 3 if last == "stop" else 0
    calls = play(generation, lambda call: END if len(call.tokens) == end_at else 9, cut_after=count)
    assert len(calls) == 1
    assert len(tokens_of(generation)) == count
    assert generation.messages[-1] == Finished("a", last, generation.sequence.usage)


def test_a_continued_call_has_a_seed_of_its_own(compiler: GrammarCompiler) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=9), compiler)
    first, second = play(generation, pure, cut_after=4)
    again = begin(make_request("a", PROMPT, max_tokens=9), compiler)
    assert second.seed != first.seed
    assert [call.seed for call in play(again, pure, cut_after=4)] == [first.seed, second.seed]


@given(
    choices=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=60),
    features=st.sampled_from([VLLM, PLAIN]),
)
@settings(max_examples=example_count(60), deadline=None)
def test_the_output_fits_its_schema_whatever_a_server_samples(
    compiler: GrammarCompiler, choices: list[int], features: EngineFeatures
) -> None:
    request = make_request("a", PROMPT, max_tokens=200, stop_ids=frozenset({END}), grammar=schema(PERSON))
    generation = begin(request, compiler, features)
    play(generation, lambda call: choices[len(call.tokens) % len(choices)])
    last = generation.messages[-1]
    assert isinstance(last, Finished)
    if last.reason == "stop":
        assert fits(json.loads(text_of(tokens_of(generation))), PERSON)


def test_a_server_that_applies_grammars_gets_the_grammar_until_output_is_lost(
    compiler: GrammarCompiler,
) -> None:
    wanted = list(b'{"age":12,"old":true}'.decode())
    text = [*ids_of("".join(wanted)), END]
    request = make_request("a", PROMPT, max_tokens=60, stop_ids=frozenset({END}), grammar=schema(PERSON))
    generation = begin(request, compiler)
    calls = play(generation, lambda call: text[len(call.tokens) - len(PROMPT)], cut_after=6)
    assert [call.lark is not None for call in calls] == [True, False]
    assert tokens_of(generation) == text


def test_a_rejected_token_is_sampled_again_among_the_allowed_ones(compiler: GrammarCompiler) -> None:
    request = make_request(
        "a", PROMPT, max_tokens=3, stop_ids=frozenset({END}), grammar=schema({"enum": [1, 2]})
    )
    generation = begin(request, compiler, PLAIN)
    calls = play(generation, lambda _call: ids_of("x")[0])
    allowed = calls[1].allowed_token_ids
    assert calls[0].allowed_token_ids is None
    assert allowed is not None
    assert set(allowed) == set(ids_of("12"))
    assert calls[1].max_tokens == 1


def test_what_only_one_token_can_follow_takes_no_call(compiler: GrammarCompiler) -> None:
    request = make_request(
        "a", PROMPT, max_tokens=40, stop_ids=frozenset({END}), grammar=schema({"const": 7})
    )
    generation = begin(request, compiler, PLAIN)
    assert play(generation, pure) == []
    assert text_of(tokens_of(generation)) == "7"


def test_a_forced_token_is_asked_for_when_its_logprob_is_wanted(compiler: GrammarCompiler) -> None:
    request = make_request(
        "a", PROMPT, max_tokens=40, stop_ids=frozenset({END}), grammar=schema({"const": 7}), logprobs=0
    )
    generation = begin(request, compiler, PLAIN)
    calls = play(generation, pure)
    assert [call.allowed_token_ids for call in calls] == [(ids_of("7")[0],), (END,)]
    sent = [message for message in generation.messages if isinstance(message, Tokens)]
    assert all(message.logprobs is not None and len(message.logprobs) == 1 for message in sent)


def test_reasoning_ends_when_its_budget_is_spent(compiler: GrammarCompiler) -> None:
    budget = ThinkingBudget(tokens=4, start=(20,), end=(30, 31), open=True)
    generation = begin(make_request("a", PROMPT, max_tokens=9, thinking_budget=budget), compiler)
    play(generation, lambda call: 40 + len(call.tokens))
    assert tokens_of(generation) == [43, 44, 45, 46, 30, 31, 49, 50, 51]


def test_bad_words_never_come(compiler: GrammarCompiler) -> None:
    request = make_request("a", PROMPT, max_tokens=8)
    request = replace(request, sampling=replace(request.sampling, bad_words=((41, 42), (50,))))
    generation = begin(request, compiler)
    play(generation, lambda call: 41 + (len(call.tokens) % 2))
    output = tokens_of(generation)
    assert len(output) == 8
    assert 50 not in output
    assert all((one, other) != (41, 42) for one, other in itertools.pairwise(output))


def test_a_request_whose_output_is_complete_ends_with_what_it_has(compiler: GrammarCompiler) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=12), compiler)
    generation.next_call()
    generation.receive(AnswerChunk(token_ids=tuple(ids_of("say"))))
    generation.finish("stop")
    assert text_of(tokens_of(generation)) == "say"
    assert generation.messages[-1] == Finished("a", "stop", generation.sequence.usage)


def test_the_prompt_is_scored_by_a_call_of_its_own(compiler: GrammarCompiler) -> None:
    request = make_request("a", [*PROMPT, 9], max_tokens=2, prompt_logprobs=1, output_offset=1)
    generation = begin(request, compiler)
    scoring, sampling = play(generation, pure)
    assert scoring.score_prompt
    assert list(scoring.tokens) == PROMPT
    assert not sampling.score_prompt
    assert list(sampling.tokens) == [*PROMPT, 9]
    assert generation.messages[0] == PromptLogprobs("a", 1, (TokenLogprobs(-1.0), TokenLogprobs(-1.0)))


def test_earlier_output_is_penalized_by_biases(compiler: GrammarCompiler) -> None:
    request = make_request("a", [*PROMPT, 9, 9], max_tokens=2, output_offset=2)
    sampling = replace(
        request.sampling, presence_penalty=0.5, frequency_penalty=1.0, logit_bias=((9, 1.0), (11, 2.0))
    )
    generation = begin(replace(request, sampling=sampling), compiler)
    call = generation.next_call()
    assert call is not None
    assert call.logit_bias == ((9, 1.0 - 0.5 - 2.0), (11, 2.0))


def rubbish(
    features: EngineFeatures, chunk: AnswerChunk, compiler: GrammarCompiler, **more: Any
) -> CallFault:
    generation = begin(make_request("a", PROMPT, max_tokens=4, **more), compiler, features)
    assert generation.next_call() is not None
    with pytest.raises(CallFault) as raised:
        generation.receive(chunk)
    assert not generation.messages
    return raised.value


@pytest.mark.parametrize("token_ids", [(SIZE,), (-1,), (5, 10**9)])
def test_a_token_outside_the_vocabulary_is_a_fault_of_the_server(
    compiler: GrammarCompiler, token_ids: Sequence[int]
) -> None:
    assert rubbish(VLLM, AnswerChunk(token_ids=tuple(token_ids)), compiler).kind == "failed"


def test_missing_logprobs_are_a_fault_of_the_server(compiler: GrammarCompiler) -> None:
    assert rubbish(VLLM, AnswerChunk(token_ids=(5,)), compiler, logprobs=1).kind == "failed"


def test_a_call_that_the_server_ends_is_a_fault_of_the_server(compiler: GrammarCompiler) -> None:
    assert rubbish(VLLM, AnswerChunk(finish_reason="abort"), compiler).kind == "failed"


def test_a_request_fails_when_calls_bring_no_token(compiler: GrammarCompiler) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=4), compiler)
    for _ in range(MAX_BARREN_CALLS):
        assert generation.next_call() is not None
        generation.end_call()
    assert generation.next_call() is not None
    with pytest.raises(CallFault) as raised:
        generation.end_call()
    assert raised.value.kind == "refused"


def test_more_tokens_than_were_asked_for_are_dropped(compiler: GrammarCompiler) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=3), compiler)
    assert generation.next_call() is not None
    generation.receive(AnswerChunk(token_ids=(5, 6, 7, 8, 9)))
    assert tokens_of(generation) == [5, 6, 7]
    assert generation.done


def test_a_cancelled_request_ends_once(compiler: GrammarCompiler) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=3), compiler)
    generation.next_call()
    generation.receive(AnswerChunk(token_ids=(5,)))
    generation.finish()
    generation.fail("engine_error", "late")
    assert tokens_of(generation) == [5]
    last = generation.messages[-1]
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"


def test_calls_of_a_request_have_ids_of_their_own(compiler: GrammarCompiler) -> None:
    request = make_request("a", PROMPT, max_tokens=40)
    generation, ids = begin(request, compiler), list[str]()
    for _ in range(CALL_IDS + 1):
        call = generation.next_call()
        assert call is not None
        ids.append(call.call_id)
    assert ids[:CALL_IDS] == call_ids(request.request_id)
    assert len(set(ids)) == CALL_IDS
    assert ids[CALL_IDS] == ids[0]


def test_an_end_token_does_not_come_early_where_a_bad_word_was_sampled(compiler: GrammarCompiler) -> None:
    request = make_request("a", PROMPT, max_tokens=8, min_tokens=6, stop_ids=frozenset({END}))
    request = replace(request, sampling=replace(request.sampling, bad_words=((50,),)))
    generation = begin(request, compiler)
    calls = play(generation, lambda call: 50 if call.allowed_token_ids is None else END)
    assert len(tokens_of(generation)) > 6
    assert END not in tokens_of(generation)[:6]
    assert any(call.allowed_token_ids is not None for call in calls)


def test_end_tokens_are_banned_where_they_are_more_than_a_server_holds_back(
    compiler: GrammarCompiler,
) -> None:
    ends = frozenset(range(100, 229))
    generation = begin(make_request("a", PROMPT, max_tokens=9, min_tokens=4, stop_ids=ends), compiler)
    calls = play(generation, lambda _call: 100)
    assert [(call.max_tokens, call.min_tokens) for call in calls] == [(4, 0), (5, 0)]
    assert calls[0].banned_token_ids == tuple(sorted(ends))
    assert calls[1].banned_token_ids == ()
    assert len(tokens_of(generation)) == 5


def test_more_allowed_tokens_than_a_server_takes_are_checked_here(compiler: GrammarCompiler) -> None:
    features = replace(VLLM, max_allowed_token_ids=3, max_biases=0)
    request = make_request("a", PROMPT, max_tokens=3, allowed_token_ids=(10, 11, 12, 13))
    generation = begin(request, compiler, features)
    calls = play(generation, lambda _call: 20)
    assert set(tokens_of(generation)) <= {10, 11, 12, 13}
    assert [call.allowed_token_ids for call in calls] == [None, (10, 11, 12, 13)] * 3


@pytest.mark.parametrize(("cut_after", "cached"), [(None, 2), (1, 0)])
def test_what_a_request_computed_itself_is_not_called_cached(
    compiler: GrammarCompiler, cut_after: int | None, cached: int
) -> None:
    generation = begin(make_request("a", PROMPT, max_tokens=4), compiler)
    play(generation, pure, cut_after=cut_after)
    last = generation.messages[-1]
    assert isinstance(last, Finished)
    assert last.usage.cached == cached


def test_logprobs_of_a_token_outside_the_vocabulary_are_a_fault_of_the_server(
    compiler: GrammarCompiler,
) -> None:
    table = TokenLogprobs(-1.0, ((SIZE, -1.0),))
    fault = rubbish(VLLM, AnswerChunk(token_ids=(5,), logprobs=(table,)), compiler, logprobs=1)
    assert "vocabulary" in str(fault)
