"""One job's progress: its tokens so far, how many of them the KV cache holds, and where.

Engine thread. Ignorant of other jobs, of memory's limits and of torch.
"""

from engine.cache import chained_digest, root_digest
from engine.messages import FinishReason, Job, Usage


class TokenSequence:
    """Prompt and output of one job as one growing list of token ids."""

    __slots__ = (
        "__weakref__",  # what a step needs to keep of a job hangs on its sequence and goes with it
        "arrival",
        "blocks",
        "cached",
        "computed",
        "digests",
        "job",
        "published",
        "tokens",
    )

    def __init__(self, job: Job, arrival: int) -> None:
        self.job = job
        self.arrival = arrival
        """Its place in the order of acceptance."""
        self.tokens: list[int] = list(job.prompt)
        self.computed = 0
        """The first so many tokens have their keys and values in `blocks`."""
        self.blocks: list[int] = []
        self.digests: list[bytes] = []
        """Of the full blocks of `tokens`, as far as they were asked for; a function of the tokens
        and the salt alone, so they outlive a preemption."""
        self.published = 0
        """The first so many blocks are known to the pool by their content."""
        self.cached: int | None = None
        """Prompt tokens found in the cache when the job first ran; None until then."""

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def output_count(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def usage(self) -> Usage:
        return Usage(prompt=len(self.job.prompt), cached=self.cached or 0, output=self.output_count)

    def block_digests(self, count: int, block_size: int) -> list[bytes]:
        """The digests of the first `count` blocks, all of which must be full."""
        while len(self.digests) < count:
            start = len(self.digests) * block_size
            previous = self.digests[-1] if self.digests else root_digest(self.job.cache_salt)
            self.digests.append(chained_digest(previous, self.tokens[start : start + block_size]))
        return self.digests[:count]

    def append(self, token_id: int) -> FinishReason | None:
        """Takes the token that was drawn; says why the job ends with it, if it does."""
        self.tokens.append(token_id)
        if token_id in self.job.stop_ids:
            return "stop"
        if self.output_count >= self.job.max_tokens:
            return "length"
        return None
