"""Which block of KV memory holds what: reference counts, content digests, and what may be reused.

Engine thread. Blocks are numbers here: the tensors behind them belong to `attention.KvStore`, and this
file is ignorant of torch, of requests and of time.

A block is *held* (by one request or by several with a common prefix) or *free*. A free block keeps its
content until it is given out again, so a later request with the same beginning, also a later turn of the
same conversation, takes it back instead of computing it. Free blocks are given out least recently used
first; those without a published content before all others.
"""

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

BLANK_BLOCK = 0
"""Never given out and never written: padding of block tables points to it, so it must stay finite."""


def root_digest(salt: str, adapter: str = "") -> bytes:
    """Where a chain of block digests starts. Chains of different salts or adapters never meet."""
    # Any string is a salt, also one with half a character in it.
    encoded = salt.encode(errors="surrogatepass")
    digest = hashlib.blake2b(encoded, digest_size=32, person=b"holdfast-kv").digest()
    if not adapter:
        return digest
    # The same tokens have other keys and values with an adapter.
    encoded = adapter.encode(errors="surrogatepass")
    return hashlib.blake2b(digest + encoded, digest_size=32, person=b"holdfast-adapt").digest()


def chained_digest(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """Names a block by all tokens from the start of the sequence to its end.

    Cryptographic on purpose: a collision would hand one request the text of another.
    """
    return hashlib.blake2b(previous + array("i", token_ids).tobytes(), digest_size=32).digest()


def extend_chain(
    chain: list[bytes],
    salt: str,
    token_ids: Sequence[int],
    count: int,
    block_size: int,
    adapter: str = "",
) -> None:
    """Adds the digests of the next blocks of a sequence, until there are `count`. Pure; any thread."""
    previous = chain[-1] if chain else root_digest(salt, adapter)
    for begin in range(len(chain) * block_size, count * block_size, block_size):
        previous = chained_digest(previous, token_ids[begin : begin + block_size])
        chain.append(previous)


class BlockPool:
    """The blocks 1 .. `total`. Every method is all or nothing."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._ref_counts = [0] * (total + 1)
        self._digest_of: list[bytes | None] = [None] * (total + 1)
        self._block_of: dict[bytes, int] = {}
        # In the order in which they are given out.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total + 1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def lookup(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the longest beginning of the chain that is still here."""
        found: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def acquire(self, blocks: Iterable[int]) -> None:
        """Adds a holder to blocks that `lookup` gave."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Blocks with one holder and no content; None, and nothing taken, if there are too few."""
        if count > len(self._free):
            return None
        blocks: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._uncache(block)
            self._ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Takes one holder away. The end of a chain becomes free before its beginning."""
        for block in reversed(blocks):
            assert self._ref_counts[block] > 0, f"block {block} was released more often than held"
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if self._digest_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def cache(self, block: int, digest: bytes) -> None:
        """Says that the block's content is computed. The first block of a content keeps the name."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def uncache(self, blocks: Iterable[int]) -> None:
        """Makes sure that the content of these blocks is never reused."""
        for block in blocks:
            self._uncache(block)

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Asserts that the books agree with `held`, the block lists of all requests that hold some."""
        expected = Counter(block for blocks in held for block in blocks)
        for block in range(1, self.total + 1):
            assert self._ref_counts[block] == expected[block], (
                f"block {block} is counted {self._ref_counts[block]} times, held {expected[block]} times"
            )
            assert (block in self._free) == (expected[block] == 0), f"block {block} is lost"
            digest = self._digest_of[block]
            assert digest is None or self._block_of[digest] == block, f"block {block} is misnamed"
        assert expected[BLANK_BLOCK] == 0, "the blank block is held"
        named = sum(digest is not None for digest in self._digest_of)
        assert named == len(self._block_of), "a digest names a block that does not know it"

    def _uncache(self, block: int) -> None:
        digest = self._digest_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._digest_of[block] = None
