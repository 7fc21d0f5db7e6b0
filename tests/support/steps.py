"""Steps put together by hand: chunks of sequences whose blocks the test chooses."""

from collections.abc import Sequence

from engine.scheduling.scheduler import ScheduledChunk
from engine.scheduling.sequence import TokenSequence
from tests.support.engines import make_prompt, make_request


def make_chunk(
    past: int, count: int, blocks: Sequence[int], *, salt: int = 0, more: int = 0
) -> ScheduledChunk:
    """`count` tokens after `past` earlier ones, in these blocks; `more` tokens of the prompt come later."""
    prompt = make_prompt(past + count + more, salt)
    sequence = TokenSequence(make_request(f"{past}+{count} of {blocks}", prompt, 8))
    sequence.blocks = list(blocks)
    return ScheduledChunk(sequence, past, count)
