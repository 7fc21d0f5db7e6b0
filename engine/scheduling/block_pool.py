"""`BlockPool`: KV blocks with reference counts and a prefix cache keyed by chained content digests, LRU.

Engine thread. Blocks are numbers here; `engine.kv_cache.KVCache` has the tensors.

A block with references (several where requests share a prefix) is in use, one without is free. A free block
keeps its content until it is allocated again, so that a later request with the same prefix, such as the next
turn of a conversation, reuses it instead of computing it. Free blocks without cached content are allocated
first, the others in least-recently-used order.
"""

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from engine.prefix_states import PrefixStates
from engine.request import EngineRequest

BLANK_BLOCK = 0
"""Never allocated, never written. Padding of block tables points to it, so its content stays finite."""


def root_digest(salt: str, adapter: str = "") -> bytes:
    """The start of a digest chain. Chains of different salts or adapters have no digest in common."""
    # A salt may contain lone surrogates.
    encoded = salt.encode(errors="surrogatepass")
    digest = hashlib.blake2b(encoded, digest_size=32, person=b"holdfast-kv").digest()
    if not adapter:
        return digest
    # With an adapter, the same tokens have different keys and values.
    encoded = adapter.encode(errors="surrogatepass")
    return hashlib.blake2b(digest + encoded, digest_size=32, person=b"holdfast-adapt").digest()


def chained_digest(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest of a block, over all tokens from the start of the sequence to the block's end.

    Cryptographic, because a collision would let one request attend to another's text.
    """
    return hashlib.blake2b(previous + array("i", token_ids).tobytes(), digest_size=32).digest()


def extend_chain(
    chain: list[bytes], request: EngineRequest, token_ids: Sequence[int], count: int, block_size: int
) -> None:
    """Appends digests of blocks of `token_ids` to `chain` until it has `count`. Any thread.

    `token_ids` is the request's prompt with its output so far.

    All pictures have the same placeholder tokens. So the digest of a block with tokens of a picture covers
    the picture's own digest, and where in the picture the block begins.
    """
    previous = chain[-1] if chain else root_digest(request.cache_salt, request.adapter)
    for begin in range(len(chain) * block_size, count * block_size, block_size):
        for image in request.images:
            if image.start < begin + block_size and begin < image.end:
                offset = (begin - image.start).to_bytes(8, "big", signed=True)
                previous = hashlib.blake2b(previous + image.digest + offset, digest_size=32).digest()
        previous = chained_digest(previous, token_ids[begin : begin + block_size])
        chain.append(previous)


class BlockPool:
    """The blocks 1 .. `total`. Each method takes effect completely or not at all."""

    def __init__(self, total: int, states: PrefixStates | None = None) -> None:
        self.total = total
        self._states = states
        self._ref_counts = [0] * (total + 1)
        self._digest_of: list[bytes | None] = [None] * (total + 1)
        self._block_of: dict[bytes, int] = {}
        # In allocation order.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total + 1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def lookup(self, digests: Sequence[bytes]) -> list[int]:
        """The cached blocks of the longest prefix of the chain, with a state after it where models have one.

        They get no reference.
        """
        blocks: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        while self._states is not None and blocks and digests[len(blocks) - 1] not in self._states:
            blocks.pop()
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Adds a reference to blocks that `lookup` returned."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Allocates blocks with one reference and no cached content; None if too few are free."""
        if count > len(self._free):
            return None
        blocks: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self.uncache((block,))
            self._ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drops one reference each. A sequence's later blocks are freed and evicted before earlier ones."""
        for block in reversed(blocks):
            assert self._ref_counts[block] > 0, f"block {block} was released more often than held"
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if self._digest_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def cache(self, block: int, digest: bytes) -> None:
        """Caches a computed block under its digest. If the digest is cached already, that block stays."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def uncache(self, blocks: Iterable[int]) -> None:
        """Removes these blocks from the prefix cache, so that their content is never reused."""
        for block in blocks:
            digest = self._digest_of[block]
            if digest is not None:
                del self._block_of[digest]
                self._digest_of[block] = None
                if self._states is not None:
                    self._states.drop(digest)

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Asserts that references agree with `held`, the block lists of all running requests."""
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
