"""A scheduler whose steps are computed by nobody: each token that is drawn is its own position."""

from dataclasses import dataclass, field
from typing import Any

from engine.config import SchedulerLimits
from engine.request import FinishReason
from engine.scheduling.scheduler import Scheduler, SchedulerOutput
from engine.scheduling.sequence import TokenSequence
from tests.support.contents import entries
from tests.support.engines import make_prompt, make_request


def limits(**settings: Any) -> SchedulerLimits:
    return SchedulerLimits(
        **{"kv_blocks": 64, "block_size": 4, "token_budget": 32, "max_running": 8, **settings}
    )


@dataclass
class Play:
    limits: SchedulerLimits
    scheduler: Scheduler = field(init=False)
    arrivals: int = 0
    ended: dict[str, FinishReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits)

    def add(self, prompt: int, output: int, salt: int = 0, **fields: Any) -> TokenSequence:
        self.arrivals += 1
        request = make_request(str(self.arrivals), make_prompt(prompt, salt), output, **fields)
        sequence = TokenSequence(request)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> SchedulerOutput:
        plan = self.scheduler.plan()
        for progress in self.scheduler.advance(plan):
            self.scheduler.confirm(progress)
        drawing = [chunk.sequence for chunk in plan if chunk.samples_token]
        for chunk in plan:
            assert chunk.sequence.num_computed_tokens == chunk.start + chunk.count
        for sequence in drawing:
            if reason := sequence.append(len(sequence.tokens)):
                self.end(sequence, reason)
        self.scheduler.check_integrity()
        return plan

    def finish(self) -> None:
        """Steps until nothing is left."""
        while not self.scheduler.idle:
            self.step()

    def held(self) -> int:
        """Entries that the scheduler has of requests, but for its blocks and what its runner takes."""
        self.scheduler.admitted.clear()
        self.scheduler.dirty.clear()
        return entries(self.scheduler) - entries(self.scheduler.pool)

    def end(self, sequence: TokenSequence, reason: FinishReason) -> None:
        assert sequence.request.request_id not in self.ended, "a request ended twice"
        self.ended[sequence.request.request_id] = reason
        self.scheduler.remove(sequence)
