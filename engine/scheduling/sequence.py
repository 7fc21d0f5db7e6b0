"""`TokenSequence`: a request's tokens, KV blocks and progress. Engine thread; no torch."""

from collections.abc import Sequence

from engine.grammar.compiler import CompiledGrammar
from engine.request import EngineRequest, FinishReason, TokenUsage
from engine.scheduling.block_pool import extend_chain
from engine.scheduling.prompt_lookup import PromptLookup
from engine.stats_snapshot import RequestTimes


class TokenSequence:
    """Prompt and output of one request as one growing list of token ids."""

    def __init__(
        self, request: EngineRequest, digests: Sequence[bytes] = (), compiled: CompiledGrammar | None = None
    ) -> None:
        self.request = request
        self.compiled = compiled
        self.ends = request.ends
        """The tokens that end a request without a grammar."""
        self.admission_order: int | None = None
        """Place in the order of first admission; None until then."""
        self.tokens: list[int] = list(request.prompt)
        self._longest = len(request.prompt) + request.max_tokens
        self.in_flight = False
        """A further token has been sampled and not read: see `core.engine_core`."""
        self.num_computed_tokens = 0
        """Number of leading tokens whose keys and values are in `blocks`, and of those that are finite."""
        self.num_finite_tokens = 0
        self.num_written_tokens = 0
        """Number of leading tokens that may have been written to `blocks`, also by steps not yet read."""
        self.blocks: list[int] = []
        self.digests: list[bytes] = list(digests)
        """Digests of the full blocks of `tokens`, computed on demand; they survive a preemption."""
        self.num_cached_blocks = 0
        self.awaited_digest: bytes | None = None
        """The digest of a block that another request is about to compute for both."""
        self.cached: int | None = None
        """Prompt tokens found in the cache when the request first ran; None until then."""
        self.lookup: PromptLookup | None = None
        """Drafts of the next tokens; None until some were asked for."""
        self.num_prompt_logprobs_sent = 0
        self.accepted_at = 0.0
        self.started_at: float | None = None
        """When the first step that computes it began; the times are monotonic and set by their owner."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.num_preemptions = 0

    @property
    def length(self) -> int:
        """Number of tokens, the one in flight included."""
        return len(self.tokens) + self.in_flight

    @property
    def remaining(self) -> int:
        """Number of tokens to compute before the next one can be sampled."""
        return self.length - self.num_computed_tokens

    @property
    def is_prefill(self) -> bool:
        """More than one token is left to compute, or one that is of a picture."""
        images = self.request.images
        return self.remaining > 1 or (bool(images) and self.remaining == 1 and images[-1].end == self.length)

    @property
    def ends_in_flight(self) -> bool:
        """The token in flight is the last one, whatever it is."""
        return self.in_flight and self.output_count + 1 >= self.request.max_tokens

    @property
    def output_count(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def output_position(self) -> int:
        """Number of output tokens, earlier output (`output_offset`) included."""
        return self.output_count + self.request.output_offset

    def must_not_stop_after(self, count: int) -> bool:
        """Whether none of `ends` may come after `count` further tokens: `min_tokens` is not reached."""
        return self.output_position + count < self.request.min_tokens and bool(self.ends)

    @property
    def pending_prompt_logprobs(self) -> range:
        """Indexes of prompt tokens whose logprobs are requested and not delivered. The first has none."""
        if self.request.prompt_logprobs is None:
            return range(0)
        return range(
            max(self.num_prompt_logprobs_sent, 1), len(self.request.prompt) - self.request.output_offset
        )

    @property
    def max_reusable_tokens(self) -> int:
        """Number of leading tokens that may come from the prefix cache instead of being computed.

        The last token is always computed, because its logits yield the next one; so is the token before each
        prompt token with a pending logprob.
        """
        pending = self.pending_prompt_logprobs
        return pending[0] - 1 if pending else len(self.tokens) - 1

    @property
    def usage(self) -> TokenUsage:
        return TokenUsage(prompt=len(self.request.prompt), cached=self.cached or 0, output=self.output_count)

    def times(self, now: float) -> RequestTimes:
        """The request's times until `now`; a request that still waits has been queued until then."""
        if self.started_at is None:
            return RequestTimes(now - self.accepted_at)
        first = self.first_token_at
        return RequestTimes(
            self.started_at - self.accepted_at, None if first is None else first - self.started_at
        )

    def block_digests(self, count: int, block_size: int) -> list[bytes]:
        """The digests of the first `count` blocks, all of which must be full."""
        extend_chain(self.digests, self.request, self.tokens, count, block_size)
        return self.digests[:count]

    def append(self, token_id: int) -> FinishReason | None:
        """Appends a sampled token; returns the finish reason if the request ends with it."""
        self.tokens.append(token_id)
        self.in_flight = False
        ends_grammar = self.request.grammar is not None and token_id in self.request.stop_ids
        if ends_grammar or token_id in self.ends:
            return "stop"
        return "length" if len(self.tokens) >= self._longest else None
