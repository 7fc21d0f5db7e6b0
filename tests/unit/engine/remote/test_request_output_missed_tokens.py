"""A server that does not send all of its tokens: `Generation` asks for an answer that is not streamed."""

from engine.remote.engine_protocol import AnswerChunk, EngineFeatures, GenerateCall
from engine.remote.request_output import UNSTREAMED_TOKENS, Generation
from engine.request import EngineRequest, Finished, SamplingParams, Tokens
from engine.sampling.token_masks import TokenMasks
from engine.scheduling.sequence import TokenSequence

FEATURES = EngineFeatures(
    grammars=False,
    max_allowed_token_ids=16_384,
    prompt_logprobs=False,
    max_logprob_token_ids=0,
    max_logprobs=20,
)
VOCABULARY = 100


def generation(max_tokens: int = 100) -> Generation:
    request = EngineRequest(
        request_id="r", prompt=(1, 2), max_tokens=max_tokens, sampling=SamplingParams(seed=7)
    )
    masks = TokenMasks(None, VOCABULARY)
    return Generation(TokenSequence(request), FEATURES, masks, VOCABULARY)


def next_call(of: Generation) -> GenerateCall:
    call = of.next_call()
    assert call is not None
    return call


def test_a_token_after_a_missing_one_is_not_taken() -> None:
    one = generation()
    next_call(one)
    one.receive(AnswerChunk(token_ids=(5,), generated_tokens=1))
    one.receive(AnswerChunk(token_ids=(7,), generated_tokens=3))
    assert (one.messages, one.call_over) == ([Tokens("r", (5,))], True)


def test_after_a_missing_token_a_few_are_asked_for_unstreamed_and_then_all() -> None:
    one = generation()
    assert next_call(one).streamed
    one.receive(AnswerChunk(token_ids=(7,), generated_tokens=2))
    one.end_call()
    call = next_call(one)
    assert (call.streamed, call.max_tokens, tuple(call.tokens)) == (False, UNSTREAMED_TOKENS, (1, 2))
    one.receive(AnswerChunk(token_ids=(6, 7), finish_reason="stop"))
    one.end_call()
    call = next_call(one)
    assert (call.streamed, call.max_tokens, tuple(call.tokens)) == (True, 98, (1, 2, 6, 7))


def test_an_answer_that_ends_with_a_missing_token_is_not_the_end() -> None:
    one = generation(max_tokens=2)
    next_call(one)
    one.receive(AnswerChunk(token_ids=(5,), generated_tokens=1))
    one.receive(AnswerChunk(finish_reason="length", generated_tokens=2))
    one.end_call()
    call = next_call(one)
    assert (call.streamed, call.max_tokens) == (False, 1)
    one.receive(AnswerChunk(token_ids=(6,), finish_reason="length"))
    one.end_call()
    assert one.next_call() is None
    assert isinstance(one.messages[-1], Finished)
    assert one.messages[-1].reason == "length"


def test_a_server_that_sends_all_tokens_is_asked_once() -> None:
    one = generation(max_tokens=2)
    next_call(one)
    one.receive(AnswerChunk(token_ids=(5,), generated_tokens=1))
    one.receive(AnswerChunk(token_ids=(6,), generated_tokens=2))
    assert one.done
