"""`Restriction`: the tokens that a call for one token may sample, by what is shorter to name. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restriction:
    """Only `allowed` may come, or, where that is None, all but `banned`."""

    allowed: tuple[int, ...] | None = None
    """Ascending ids."""
    banned: tuple[int, ...] = ()
    """Ascending ids."""

    def permits(self, token_id: int) -> bool:
        return token_id in self.allowed if self.allowed is not None else token_id not in self.banned


def restriction_of(
    mask: bytes, never: Iterable[int], vocab_size: int, *, most_allowed: int, most_banned: int
) -> Restriction:
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
        return Restriction(banned=_ids(~allowed & ((1 << vocab_size) - 1)))
    return Restriction(allowed=_ids(allowed))


def token_bits(mask: bytes, vocab_size: int) -> int:
    """The mask as a number: bit n is set if token n may come. Bits after the vocabulary are cut."""
    return int.from_bytes(mask, "little") & ((1 << vocab_size) - 1)


def _ids(bits: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return tuple(
        8 * index + bit for index, byte in enumerate(data) if byte for bit in range(8) if byte >> bit & 1
    )
