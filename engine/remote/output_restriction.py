"""Restrictions of the tokens of a call: `OutputRestriction` of one token, and `logit_biases`. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.request import SamplingParams

MAX_BIAS = 100.0

Biases = tuple[tuple[int, float], ...]
"""(token id, bias) pairs, ids ascending."""


@dataclass(frozen=True, slots=True)
class OutputRestriction:
    """Only `allowed` may come, or, where that is None, all but `banned`: the shorter list is named."""

    allowed: tuple[int, ...] | None = None
    """Ascending ids."""
    banned: tuple[int, ...] = ()
    """Ascending ids."""

    def permits(self, token_id: int) -> bool:
        return token_id in self.allowed if self.allowed is not None else token_id not in self.banned


def restriction_of(
    mask: bytes, never: Iterable[int], vocab_size: int, *, most_allowed: int, most_banned: int
) -> OutputRestriction:
    """The restriction to the tokens of a mask, of which those in `never` may not come either.

    Names at most `most_allowed` allowed tokens, else at most `most_banned` banned ones; where both are more,
    all allowed ones. Raises ValueError if no token may come.
    """
    allowed = token_bits(mask, vocab_size)
    for token_id in never:
        allowed &= ~(1 << token_id)
    count = allowed.bit_count()
    if not count:
        raise ValueError("No token may come here.")
    if count > most_allowed and vocab_size - count <= most_banned:
        return OutputRestriction(banned=_ids(~allowed & ((1 << vocab_size) - 1)))
    return OutputRestriction(allowed=_ids(allowed))


def token_bits(mask: bytes, vocab_size: int) -> int:
    """The mask as a number: bit n is set if token n may come. Bits after the vocabulary are cut."""
    return int.from_bytes(mask, "little") & ((1 << vocab_size) - 1)


def _ids(bits: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
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
