"""`Generation`: one request's output over any number of calls to engine servers. Sans-IO.

Usually one call generates the whole output. Further calls continue the tokens so far:

- after a server was lost, on another one;
- where a token may not come here. What a server cannot apply (a grammar that begins before the call, bad
  words, a thinking budget) is applied to the tokens that it sampled: a token outside the mask is dropped,
  with all after it, and a call for one token samples among the allowed ones. Rejecting and sampling again has
  the distribution of masked sampling: p(t) + (1 - Z) p(t) / Z = p(t) / Z, where Z is the allowed tokens'
  probability. (Truncation by top_p, top_k or min_p is of the unmasked distribution first.)
- where only one token may come, there is no call at all, unless its logprobs are requested.
- where a server has not sent a token that it generated: for a few tokens, in an answer that has them all.

A grammar that the server applies is followed here, too: releases of llguidance differ in details, such as
whitespace between the parts of JSON.

A call that continues output has another seed, a function of the request's and the position, since the
server's generator starts anew with each call.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.remote.engine_protocol import AnswerChunk, CallFault, EngineFeatures, GenerateCall
from engine.request import (
    MAX_BIAS,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Outbound,
    PromptLogprobs,
    SamplingParams,
    TokenLogprobs,
    Tokens,
)
from engine.sampling.token_masks import TokenMasks, allows_token, has_rules
from engine.scheduling.sequence import TokenSequence

MAX_BARREN_CALLS = 8
"""Successive calls without a new token, each of which the server has answered; then the request fails."""
CALL_IDS = 16
"""Ids of a request's calls, used in turn: so many that an abandoned call never has that of a newer one, and
so few that all of them can be ended for a process that has died."""
UNSTREAMED_TOKENS = 16
"""Tokens of a call that is not streamed: text in which servers miss a token often comes in such parts."""
SEED_BITS = 63
"""Size of the seeds of calls: servers take signed numbers of 64 bits."""

Biases = tuple[tuple[int, float], ...]
"""(token id, bias) pairs, ids ascending."""


@dataclass(frozen=True, slots=True)
class OutputRestriction:
    """Only `allowed` may come, or, where that is None, all but `banned`: the shorter list is named."""

    allowed: tuple[int, ...] | None = None
    banned: tuple[int, ...] = ()

    def permits(self, token_id: int) -> bool:
        return token_id in self.allowed if self.allowed is not None else token_id not in self.banned


class Generation:
    """The state of one request; `next_call`, then `receive` for each chunk and `end_call`, until `done`."""

    def __init__(
        self, sequence: TokenSequence, features: EngineFeatures, masks: TokenMasks, vocab_size: int
    ) -> None:
        self.sequence = sequence
        self.messages: list[Outbound] = []
        """Messages since they were last taken by the caller."""
        self.done = False
        """The last message is in `messages`."""
        self.call_over = False
        """No further token of the current call is used; it should be closed."""
        self._features = features
        self._masks = masks
        self._vocab_size = vocab_size
        self._native_grammar = self._takes_native_grammar()
        """The server applies the grammar in the current call."""
        self._restriction: OutputRestriction | None = None
        """The restriction of the current call, which is for one token then; None allows all."""
        self._rejected = False
        """The last sampled token may not come; the next call is restricted."""
        self._mask: bytes | None = None
        self._mask_at = -1
        self._scoring = False
        self._ended: FinishReason | None = None
        """The output is complete; the end of the answer, with its usage, is awaited."""
        self._length_at_call = 0
        self._barren_calls = 0
        self._calls = 0
        self._missed_token = False
        """The server has not sent a token of the current call."""

    @property
    def awaits_usage(self) -> bool:
        """The output is complete, and its last message will follow with the end of the answer."""
        return self._ended is not None and not self.done

    # Calls

    def next_call(self) -> GenerateCall | None:
        """The next call; None if the request has ended, perhaps by tokens that only one choice allowed."""
        if self._ended is not None:  # the server was lost before it had sent the usage
            self.finish(self._ended)
            return None
        self.call_over = False
        self._scoring = bool(self.sequence.pending_prompt_logprobs)
        self._restriction = None
        if not self._scoring and self._checks_tokens():
            self._append_forced()
        if self.done:
            return None
        self._length_at_call = len(self.sequence.tokens)
        return self._scoring_call() if self._scoring else self._sampling_call()

    def _scoring_call(self) -> GenerateCall:
        request, call_id = self.sequence.request, self._next_call_id()
        prompt = request.prompt[: len(request.prompt) - request.output_offset]
        return GenerateCall(
            call_id=call_id, request=request, tokens=prompt, max_tokens=1, seed=0, score_prompt=True
        )

    def _sampling_call(self) -> GenerateCall:
        sequence, request = self.sequence, self.sequence.request
        remaining = request.max_tokens - sequence.output_count
        compiled = sequence.compiled
        self._native_grammar = self._native_grammar and sequence.output_position == 0
        streamed, self._missed_token = not self._missed_token, False
        most = remaining if streamed else min(remaining, UNSTREAMED_TOKENS)
        restriction = self._restriction
        banned = restriction.banned if restriction is not None else ()
        min_tokens = 0
        if request.grammar is None and restriction is None:
            min_tokens = max(0, min(request.min_tokens - sequence.output_position, remaining))
        masked = self._features.max_masked_ends
        if min_tokens and masked is not None and len(sequence.ends) > masked:
            banned, most, min_tokens = tuple(sorted(sequence.ends)), min(most, min_tokens), 0
        return GenerateCall(
            call_id=self._next_call_id(),
            request=request,
            tokens=tuple(sequence.tokens),
            max_tokens=most if restriction is None else 1,
            seed=self._seed(),
            min_tokens=min_tokens,
            lark=compiled.source if self._native_grammar and compiled is not None else None,
            allowed_token_ids=restriction.allowed if restriction is not None else None,
            banned_token_ids=banned,
            logit_bias=self._logit_bias(len(banned)),
            streamed=streamed,
        )

    def _next_call_id(self) -> str:
        self._calls += 1
        return call_ids(self.sequence.request.request_id)[(self._calls - 1) % CALL_IDS]

    def _seed(self) -> int:
        """The request's own seed at the beginning of its output; else a function of it and the position."""
        seed, position = self.sequence.request.sampling.seed, self.sequence.output_position
        if position == 0 and self._restriction is None:
            return seed
        kind = "any" if self._restriction is None else "allowed"
        mixed = hashlib.blake2b(f"{seed}:{position}:{kind}".encode(), digest_size=8).digest()
        return int.from_bytes(mixed, "big") >> (64 - SEED_BITS)

    def _logit_bias(self, banned: int = 0) -> Biases:
        """The biases of a call that bans so many tokens, which the server counts among them."""
        request, most = self.sequence.request, self._features.max_biases
        earlier = self.sequence.tokens[len(request.prompt) - request.output_offset :]
        return logit_biases(request.sampling, earlier, None if most is None else most - banned)

    # Answers

    def receive(self, chunk: AnswerChunk) -> None:
        """Takes a part of the current call's answer. Raises `CallFault` for tokens that cannot be."""
        sequence = self.sequence
        is_first_call = self._calls == 1 and not self._scoring and not sequence.request.output_offset
        if chunk.cached_tokens is not None and is_first_call:  # later ones find what this request computed
            sequence.cached = max(0, min(chunk.cached_tokens, len(sequence.request.prompt)))
        if self._scoring:
            pending, logprobs = sequence.pending_prompt_logprobs, tuple(chunk.prompt_logprobs)
            if len(logprobs) != len(pending):
                raise CallFault(
                    "failed", f"its answer has {len(logprobs)} prompt logprobs, not {len(pending)}"
                )
            self._check_ids(logprobs)
            sequence.num_prompt_logprobs_sent = pending.stop
            self.messages.append(PromptLogprobs(sequence.request.request_id, pending.start, logprobs))
            return
        if chunk.generated_tokens is not None and self._ended is None:
            generated = len(sequence.tokens) + len(chunk.token_ids) - self._length_at_call
            if generated < chunk.generated_tokens:
                self._missed_token = self.call_over = True
                return
        if chunk.token_ids and self._ended is None:
            self._receive_tokens(chunk)
        if chunk.finish_reason == "abort" and self._ended is None:
            raise CallFault("failed", "it has ended the call before its time")
        if chunk.finish_reason is not None and self._ended is None:
            self.call_over = True

    def end_call(self) -> None:
        """The request ends or goes on. Raises `CallFault` after too many calls without a token."""
        self.call_over = True
        if self._ended is not None:
            self.finish(self._ended)
        elif len(self.sequence.tokens) == self._length_at_call and not self._scoring:
            self._barren_calls += 1
            if self._barren_calls > MAX_BARREN_CALLS:
                raise CallFault("refused", f"it has answered {MAX_BARREN_CALLS} calls without a token")
        else:
            self._barren_calls = 0

    def _receive_tokens(self, chunk: AnswerChunk) -> None:
        sequence = self.sequence
        self._check_chunk(chunk)
        begin = len(sequence.tokens)
        for token_id in chunk.token_ids:
            if not self._may_come(token_id):
                self._rejected = self.call_over = True
                self._native_grammar = False  # the server takes it otherwise than we do
                break
            self._ended = sequence.append(token_id)
            if self._ended is not None or self._restriction is not None:
                self.call_over = self._ended is None
                break
        self._emit(begin, chunk.logprobs)
        if self._ended is not None and chunk.finish_reason is None:
            self.finish(self._ended)  # the server would go on
            self.call_over = True

    def _check_chunk(self, chunk: AnswerChunk) -> None:
        if min(chunk.token_ids) < 0 or max(chunk.token_ids) >= self._vocab_size:
            raise CallFault("failed", "its answer has a token that is not in the vocabulary")
        has_logprobs = self.sequence.request.logprobs is not None
        if has_logprobs and (chunk.logprobs is None or len(chunk.logprobs) != len(chunk.token_ids)):
            raise CallFault("failed", "its answer has no logprobs")
        self._check_ids(chunk.logprobs or ())

    def _check_ids(self, logprobs: Sequence[TokenLogprobs]) -> None:
        if any(not 0 <= token_id < self._vocab_size for table in logprobs for token_id, _ in table.top):
            raise CallFault("failed", "its answer has logprobs of a token that is not in the vocabulary")

    # Tokens

    def _emit(self, begin: int, logprobs: Sequence[TokenLogprobs] | None) -> None:
        """Queues the tokens from index `begin` on, with the first of `logprobs`."""
        token_ids = tuple(self.sequence.tokens[begin:])
        if not token_ids:
            return
        has_logprobs = self.sequence.request.logprobs is not None
        tables = tuple(logprobs[: len(token_ids)]) if has_logprobs and logprobs is not None else None
        self.messages.append(Tokens(self.sequence.request.request_id, token_ids, tables))

    def _append_forced(self) -> None:
        """Appends tokens as long as the mask allows one only; restricts the call if one was rejected here."""
        sequence = self.sequence
        begin = len(sequence.tokens)
        while self._ended is None and (only := self._only_token()) is not None:
            if sequence.request.logprobs is not None:
                self._restriction = OutputRestriction(allowed=(only,))
                break
            self._ended = sequence.append(only)
        if self._rejected and self._restriction is None and len(sequence.tokens) == begin:
            self._restriction = self._current_restriction()
        self._rejected = False
        self._emit(begin, None)
        if self._ended is not None:
            self.finish(self._ended)

    def _only_token(self) -> int | None:
        mask = self._current_mask()
        bits = 0 if mask is None else token_bits(mask, self._vocab_size)
        return bits.bit_length() - 1 if bits.bit_count() == 1 else None

    def _current_restriction(self) -> OutputRestriction:
        """Restricts a call to the current mask, without end tokens that `min_tokens` holds back."""
        request = self.sequence.request
        holds_back = self.sequence.must_not_stop_after(0) and request.grammar is None
        most = self._features.max_biases
        room = 0 if most is None else most - len(self._logit_bias())
        return restriction_of(
            self._current_mask() or b"",
            self.sequence.ends if holds_back else (),
            self._vocab_size,
            most_allowed=self._features.max_allowed_token_ids,
            most_banned=room,
        )

    def _may_come(self, token_id: int) -> bool:
        if self._restriction is not None:
            if not self._restriction.permits(token_id):
                raise CallFault("failed", "its answer has a token that the call does not allow")
            return True
        request = self.sequence.request
        if request.grammar is not None and not has_rules(request):
            return self._masks.grammars.allows(self.sequence, token_id)
        if not self._checks_tokens():
            return True
        mask = self._current_mask()
        return mask is None or allows_token(mask, token_id)

    def _current_mask(self) -> bytes | None:
        """The mask of the next token, computed once. Raises `CallFault` if no token may come."""
        length = len(self.sequence.tokens)
        if self._mask_at != length:
            masks = self._masks.of([self.sequence])
            if masks is not None and masks.failed:
                raise CallFault("refused", next(iter(masks.failed.values())))
            self._mask = None if masks is None else masks.of.get(0)
            self._mask_at = length
        return self._mask

    def _checks_tokens(self) -> bool:
        """Whether sampled tokens are checked here, because the server does not apply all of the rules."""
        request = self.sequence.request
        if request.grammar is not None:
            return not self._native_grammar
        if request.thinking_budget is not None or request.sampling.bad_words:
            return True
        return len(request.sampling.allowed_token_ids) > self._features.max_allowed_token_ids

    def _takes_native_grammar(self) -> bool:
        """The grammar is the only rule: servers weigh rules against each other otherwise than we do."""
        request = self.sequence.request
        return (
            request.grammar is not None
            and self._features.grammars
            and self.sequence.output_position == 0
            and not has_rules(request)
            and not request.stop_token_ids
            and not request.ignore_eos
        )

    # Ends

    def fail(self, code: FailureCode, message: str) -> None:
        self._end(Failed(self.sequence.request.request_id, code, message, self.sequence.usage))

    def finish(self, reason: FinishReason = "cancelled") -> None:
        sequence = self.sequence
        self._end(Finished(sequence.request.request_id, reason, sequence.usage))

    def _end(self, last: Failed | Finished) -> None:
        if not self.done:
            self.done = True
            self.messages.append(last)


def call_ids(request_id: str) -> list[str]:
    """All ids that calls of a request may have at a server."""
    return [f"{request_id}-{number}" for number in range(CALL_IDS)]


def restriction_of(
    mask: bytes, never: Iterable[int], vocab_size: int, *, most_allowed: int, most_banned: int
) -> OutputRestriction:
    """The restriction to the tokens of a mask, of which those in `never` may not come either.

    Names at most `most_allowed` allowed tokens, else at most `most_banned` banned ones; where both are more,
    all allowed ones. Raises `CallFault` if no token may come.
    """
    allowed = token_bits(mask, vocab_size)
    for token_id in never:
        allowed &= ~(1 << token_id)
    count = allowed.bit_count()
    if not count:
        raise CallFault("refused", "No token may come here.")
    if count > most_allowed and vocab_size - count <= most_banned:
        return OutputRestriction(banned=_ids(~allowed & ((1 << vocab_size) - 1)))
    return OutputRestriction(allowed=_ids(allowed))


def token_bits(mask: bytes, vocab_size: int) -> int:
    """The mask as a number: bit n is set if token n may come. Bits after the vocabulary are cut."""
    return int.from_bytes(mask, "little") & ((1 << vocab_size) - 1)


def _ids(bits: int) -> tuple[int, ...]:
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return tuple(
        8 * index + bit for index, byte in enumerate(data) if byte for bit in range(8) if byte >> bit & 1
    )


def logit_biases(sampling: SamplingParams, earlier: Sequence[int], most: int | None) -> Biases:
    """The biases of a call that continues `earlier` output, which its server takes for prompt.

    A token of it that comes again in this call has its presence penalty twice. Of more than `most` biases the
    smallest penalties are left out, and then the request's own with the highest ids.
    """
    biases = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token_id, count in Counter(earlier).items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            biases[token_id] = max(-MAX_BIAS, min(MAX_BIAS, biases.get(token_id, 0.0) - penalty))
    own = {token_id for token_id, _ in sampling.logit_bias}
    by_weight = sorted(
        biases.items(),
        key=lambda pair: (pair[0] not in own, 0.0 if pair[0] in own else -abs(pair[1]), pair[0]),
    )
    return tuple(sorted(by_weight[:most]))
