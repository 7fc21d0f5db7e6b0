"""`find_difference_of_bits`: whether a token's logits depend on what is computed beside it, tried at load.

A prompt is computed in one step, then in chunks beside another one, the last of a single token. If all
logits are equal to the last bit, an answer is the same when it is resumed, preempted, batched otherwise, or
begins in a cached prefix.
"""

from itertools import pairwise

import torch

from engine.runner.forward_check import Logits, compute_rows, make_sequence

TOKENS = 40
"""More rows than a product of few rows has."""
BORDERS = (0, 7, TOKENS - 3, TOKENS - 1, TOKENS)


def blocks_used(block_size: int) -> int:
    """The number of blocks, from the first one on, that the check writes to."""
    return 2 * -(-TOKENS // block_size)


def find_difference_of_bits(logits: Logits, vocab_size: int, block_size: int) -> str | None:
    """Which tokens have other logits in chunks beside others, in words; None if none has."""
    tokens = [(at * at * 31 + at * 7 + 5) % vocab_size for at in range(TOKENS)]
    prompt = make_sequence(tokens, 1, block_size)
    other = make_sequence(tokens[::-1], 1 + blocks_used(block_size) // 2, block_size)
    with torch.inference_mode():
        (whole,) = compute_rows(logits, [(prompt, 0, TOKENS)], TOKENS)
        for start, end in pairwise(BORDERS):
            part = (prompt, start, end - start)
            beside = (other, start, end - start)
            rows, _ = compute_rows(logits, [part, beside], TOKENS)
            if not torch.equal(rows, whole[start:end]):
                return f"tokens {start + 1} to {end} of a prompt in a chunk of their own have other logits"
    return None
