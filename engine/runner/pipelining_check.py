"""`find_pipelining_fault`: a step whose tokens are not yet read, compared at load time with one whose are.

Two prompts are computed and a token sampled for each; the next step is launched twice, with the tokens on the
device and with those that the host has read. Both must give the same logits.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.executor import ForwardHandle, PendingTokens, RowFailure
from engine.request import describe
from engine.runner.forward_check import make_sequence
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

PROMPT_LENGTHS = (5, 9)


class Forward(ForwardHandle, Protocol):
    """A launched step, from `ModelRunner.begin`."""

    @property
    def sequences(self) -> list[TokenSequence]: ...

    @property
    def logits(self) -> Tensor: ...


Begin = Callable[[SchedulerOutput], Forward]


def find_pipelining_fault(begin: Begin, vocab_size: int, block_size: int, blocks: int) -> str | None:
    """Why pipelined steps are not right on this device, in a sentence; None if they are.

    Uses the first blocks of a cache of `blocks` blocks, whose content is undefined afterwards. A cache that
    is too small for it is not checked. Raises `torch.AcceleratorError` and `EngineFault`.
    """
    if blocks_used(block_size) > blocks:
        return None
    try:
        ahead_tokens, ahead = _decode(begin, _make_sequences(vocab_size, block_size), reads_first=False)
        tokens, expected = _decode(begin, _make_sequences(vocab_size, block_size), reads_first=True)
    except torch.AcceleratorError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever an operation raises
        return describe(error)
    if ahead_tokens != tokens:
        return f"tokens {ahead_tokens} were read where {tokens} were sampled"
    return difference_of(expected, ahead)


def difference_of(expected: Tensor, logits: Tensor) -> str | None:
    """The difference of logits from the expected ones, in words; None if it is within rounding."""
    tolerance = 1e-3 if expected.dtype == torch.float32 else 3e-2
    difference = (expected.float() - logits.float()).abs().max().item()
    scale = expected.float().abs().max().item()
    # `<=` is False for NaN, too.
    return None if difference <= tolerance * scale else f"logits differ by {difference:g} of {scale:g}"


def blocks_used(block_size: int) -> int:
    """The number of blocks, from the first one on, that the check writes to."""
    return sum(-(-(length + 1) // block_size) for length in PROMPT_LENGTHS)


def _make_sequences(vocab_size: int, block_size: int) -> list[TokenSequence]:
    sequences, block = [], 1
    for number, length in enumerate(PROMPT_LENGTHS):
        prompt = [(7 * number + 3 * position + 1) % vocab_size for position in range(length)]
        sequences.append(make_sequence(prompt, block, block_size, room=1))
        block += len(sequences[-1].blocks)
    return sequences


def _decode(
    begin: Begin, sequences: Sequence[TokenSequence], *, reads_first: bool
) -> tuple[list[int | str], Tensor]:
    """The first token of each sequence, and the logits `[sequences, vocabulary]` for its second one."""
    prefill = tuple(ScheduledChunk(sequence, 0, sequence.length) for sequence in sequences)
    pending = begin(prefill).sample(lambda _sequence: True)
    tokens: list[int | str] = []
    if reads_first:
        tokens = _read(pending, sequences)
    else:
        for sequence in sequences:
            sequence.in_flight = True
    decode = tuple(ScheduledChunk(sequence, sequence.length - 1, 1) for sequence in sequences)
    forward = begin(decode)
    order = [forward.sequences.index(sequence) for sequence in sequences]
    logits = torch.stack([forward.logits[row] for row in order])  # a graph's next replay overwrites them
    return tokens or _read(pending, sequences), logits


def _read(pending: PendingTokens, sequences: Sequence[TokenSequence]) -> list[int | str]:
    """The tokens in the order of `sequences`, or why there is none; appends them."""
    sampled = dict(zip(pending.sequences, pending.read().sampled, strict=True))
    results: list[int | str] = []
    for sequence in sequences:
        result = sampled[sequence]
        if isinstance(result, RowFailure):
            results.append(result.message)
            continue
        results.append(result.token_id)
        sequence.append(result.token_id)
    return results
