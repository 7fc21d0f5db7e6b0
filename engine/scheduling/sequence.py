"""One request's progress: its tokens so far, how many of them the KV cache holds, and where.

Engine thread. Ignorant of other requests, of memory's limits and of torch.
"""

from collections.abc import Sequence

from engine.grammar.compiler import CompiledGrammar
from engine.request import EngineRequest, FinishReason, StopMatch, Usage
from engine.scheduling.block_pool import extend_chain
from engine.scheduling.stop_strings import StopStrings
from engine.vocabulary import Vocabulary


class TokenSequence:
    """Prompt and output of one request as one growing list of token ids."""

    __slots__ = (
        "__weakref__",  # what a step needs to keep of a request hangs on its sequence and goes with it
        "admission_order",
        "arrival_order",
        "awaited_digest",
        "blocks",
        "cached",
        "compiled",
        "digests",
        "ends",
        "in_flight",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_finite_tokens",
        "num_prompt_logprobs_sent",
        "num_written_tokens",
        "request",
        "stop_match",
        "stops",
        "tokens",
    )

    def __init__(
        self,
        request: EngineRequest,
        arrival: int,
        vocabulary: Vocabulary | None = None,
        digests: Sequence[bytes] = (),
        compiled: CompiledGrammar | None = None,
    ) -> None:
        self.request = request
        self.compiled = compiled
        """Its grammar, if it has one."""
        self.ends = request.stop_token_ids | (frozenset() if request.ignore_eos else request.stop_ids)
        """The tokens that end it, where it has no grammar."""
        self.arrival_order = arrival
        """Its place in the order of acceptance."""
        self.admission_order: int | None = None
        """Its place in the order in which requests first ran; None until then."""
        self.tokens: list[int] = list(request.prompt)
        self.in_flight = False
        """One token more is drawn, which the host has not read yet: see `ahead`."""
        self.num_computed_tokens = 0
        """The first so many tokens have their keys and values in `blocks`."""
        self.num_finite_tokens = 0
        """The first so many have keys and values that are known to be finite."""
        self.num_written_tokens = 0
        """The first so many may have keys and values in `blocks`, also those of steps that were not read."""
        self.blocks: list[int] = []
        self.digests: list[bytes] = list(digests)
        """Of the full blocks of `tokens`, as far as they were asked for; a function of the tokens,
        the salt and the adapter alone, so they outlive a preemption."""
        self.num_cached_blocks = 0
        """The first so many blocks are known to the pool by their content."""
        self.awaited_digest: bytes | None = None
        """The digest of a block that another request is about to compute for both."""
        self.cached: int | None = None
        """Prompt tokens found in the cache when the request first ran; None until then."""
        self.num_prompt_logprobs_sent = 0
        """The logprobs of the first so many prompt tokens are told, if the request wants them."""
        self.stops: StopStrings | None = None
        if request.stop_strings:
            assert vocabulary is not None, "a request with stop strings was accepted without a vocabulary"
            earlier = request.prompt[len(request.prompt) - request.output_offset :]
            self.stops = StopStrings(request.stop_strings, vocabulary, earlier)
        self.stop_match: StopMatch | None = None
        """The stop string that ended the output."""

    @property
    def length(self) -> int:
        """Tokens, the one in flight included."""
        return len(self.tokens) + self.in_flight

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.tokens) + self.in_flight - self.num_computed_tokens

    @property
    def ends_in_flight(self) -> bool:
        """The token in flight is the last one, whatever it is."""
        return self.in_flight and self.output_count + 1 >= self.request.max_tokens

    @property
    def output_count(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def output_position(self) -> int:
        """Output tokens so far, those included that came before the request was cut."""
        return self.output_count + self.request.output_offset

    @property
    def must_not_stop(self) -> bool:
        """The next token may not be one of `ends`."""
        return self.output_position < self.request.min_tokens and bool(self.ends)

    @property
    def pending_prompt_logprobs(self) -> range:
        """The prompt tokens whose logprobs are wanted and not told. The first token has none."""
        if self.request.prompt_logprobs is None:
            return range(0)
        return range(
            max(self.num_prompt_logprobs_sent, 1), len(self.request.prompt) - self.request.output_offset
        )

    @property
    def max_reusable_tokens(self) -> int:
        """The first so many tokens need not be computed if their keys and values are in the cache.

        The last one always is: its logits are what the next is drawn from. So is the one before each
        prompt token whose logprob is still to be told.
        """
        untold = self.pending_prompt_logprobs
        return untold[0] - 1 if untold else len(self.tokens) - 1

    @property
    def usage(self) -> Usage:
        return Usage(prompt=len(self.request.prompt), cached=self.cached or 0, output=self.output_count)

    def block_digests(self, count: int, block_size: int) -> list[bytes]:
        """The digests of the first `count` blocks, all of which must be full."""
        request = self.request
        extend_chain(self.digests, request.cache_salt, self.tokens, count, block_size, request.adapter)
        return self.digests[:count]

    def append(self, token_id: int) -> FinishReason | None:
        """Takes the token that was drawn; says why the request ends with it, if it does."""
        self.tokens.append(token_id)
        self.in_flight = False
        if self.stops is not None:
            self.stop_match = self.stops.push(token_id, ends=self.output_position > self.request.min_tokens)
        if token_id in self.ends or (token_id in self.request.stop_ids and self.request.grammar is not None):
            return "stop"
        if self.stop_match is not None:
            return "stop"
        if self.output_count >= self.request.max_tokens:
            return "length"
        return None
