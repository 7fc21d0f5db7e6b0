from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix_states import PrefixStates
from engine.scheduling.block_pool import BLANK_BLOCK, BlockPool, chained_digest, root_digest
from tests.support.rounds import example_count


def digests_of(count: int, salt: str = "") -> list[bytes]:
    digests = [root_digest(salt)]
    for number in range(count):
        digests.append(chained_digest(digests[-1], [number]))
    return digests[1:]


def filled(pool: BlockPool, count: int, salt: str = "") -> list[int]:
    """Blocks that hold the chain of `digests_of`."""
    blocks = pool.allocate(count)
    assert blocks is not None
    for block, digest in zip(blocks, digests_of(count, salt), strict=True):
        pool.cache(block, digest)
    return blocks


def test_a_pool_gives_each_block_once_and_never_the_blank_one() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(5)
    assert blocks is not None
    assert sorted(blocks) == [1, 2, 3, 4, 5]
    assert BLANK_BLOCK not in blocks
    assert pool.allocate(1) is None
    assert (pool.used, pool.free) == (5, 0)


def test_a_pool_takes_nothing_when_it_cannot_give_all() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.free == 3


def test_a_chain_is_found_as_far_as_it_is_known() -> None:
    pool = BlockPool(8)
    blocks = filled(pool, 4)
    assert pool.lookup(digests_of(6)) == blocks
    assert pool.lookup(digests_of(2)) == blocks[:2]
    assert pool.lookup(digests_of(4, salt="another")) == []


def test_a_chain_is_found_as_far_as_a_state_is_kept_after_it_and_its_states_go_with_its_blocks() -> None:
    states = PrefixStates(2)
    pool = BlockPool(4, states)
    blocks, digests = filled(pool, 4), digests_of(4)
    assert pool.lookup(digests) == []
    for number in (0, 1, 2):
        states.keep(digests[number], number)
    assert pool.lookup(digests) == blocks[:3]
    assert pool.lookup(digests[:1]) == []  # there is room for two
    pool.uncache(blocks[2:])
    assert pool.lookup(digests) == blocks[:2]
    assert (states.get(digests[1]), states.get(digests[2])) == (1, None)


def test_a_released_chain_is_found_until_its_blocks_are_needed() -> None:
    pool = BlockPool(4)
    blocks = filled(pool, 3)
    pool.release(blocks)
    assert pool.used == 0
    assert pool.lookup(digests_of(3)) == blocks
    assert pool.allocate(4) is not None
    assert pool.lookup(digests_of(3)) == []


def test_the_end_of_a_chain_goes_before_its_beginning() -> None:
    pool = BlockPool(3)
    blocks = filled(pool, 3)
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert pool.lookup(digests_of(3)) == blocks[:2]


def test_the_chain_that_was_used_last_goes_last() -> None:
    pool = BlockPool(4)
    old, new = filled(pool, 2, "old"), filled(pool, 2, "new")
    pool.release(old)
    pool.release(new)
    pool.acquire(pool.lookup(digests_of(2, "old")))
    pool.release(old)
    assert sorted(pool.allocate(2) or []) == sorted(new)
    assert pool.lookup(digests_of(2, "old")) == old


def test_a_block_without_content_goes_before_all_others() -> None:
    pool = BlockPool(3)
    content = filled(pool, 1)
    empty = pool.allocate(2)
    assert empty is not None
    pool.release(content)
    pool.release(empty)
    assert sorted(pool.allocate(2) or []) == sorted(empty)


def test_the_first_block_of_a_content_keeps_its_name() -> None:
    pool = BlockPool(4)
    first, second = filled(pool, 2), filled(pool, 2)
    assert pool.lookup(digests_of(2)) == first
    pool.check_integrity([first, second])
    pool.release(second)
    pool.release(first)
    assert pool.lookup(digests_of(2)) == first


def test_a_forgotten_block_is_not_found() -> None:
    pool = BlockPool(3)
    blocks = filled(pool, 3)
    pool.uncache(blocks[1:2])
    assert pool.lookup(digests_of(3)) == blocks[:1]
    pool.check_integrity([blocks])


def test_digests_differ_by_salt_by_content_and_by_what_came_before() -> None:
    one, other = root_digest("a"), root_digest("b")
    names = [one, other, *(chained_digest(d, t) for d in (one, other) for t in ([1, 2], [2, 1], [1], []))]
    assert len(set(names)) == len(names)


class Oldest:
    """What least recently used means, spelled out: all free blocks in a list, looked through each time."""

    def __init__(self, total: int) -> None:
        self.empty = set(range(1, total + 1))
        self.used: list[int] = []  # free and with content, least recently used first

    def check_given(self, blocks: list[int]) -> None:
        """The blocks are those that must go: all empty ones first, then the oldest."""
        expected = min(len(blocks), len(self.empty))
        assert len(self.empty & set(blocks)) == expected
        self.empty -= set(blocks)
        oldest, self.used = self.used[: len(blocks) - expected], self.used[len(blocks) - expected :]
        assert sorted(set(blocks) & set(oldest)) == sorted(oldest)


@settings(max_examples=example_count(60), deadline=None)
@given(st.data())
def test_the_blocks_that_go_are_always_the_least_recently_used(data: st.DataObject) -> None:
    pool, oldest = BlockPool(12), Oldest(12)
    held: list[list[int]] = []
    for step in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["fill", "acquire", "release", "empty"])):
            case "fill" if pool.free >= 3:
                held.append(filled(pool, 3, str(step)))
                oldest.check_given(held[-1])
            case "acquire":
                blocks = pool.lookup(digests_of(3, str(data.draw(st.integers(0, step)))))
                pool.acquire(blocks)
                oldest.used = [block for block in oldest.used if block not in blocks]
                held.append(blocks)
            case "release" if held:
                blocks = held.pop(data.draw(st.integers(0, len(held) - 1)))
                pool.release(blocks)
                oldest.used += [block for block in reversed(blocks) if not pool.ref_count(block)]
            case "empty" if pool.free:
                (block,) = pool.allocate(1) or []
                oldest.check_given([block])
                pool.release([block])
                oldest.empty.add(block)
        assert pool.free == len(oldest.empty) + len(oldest.used)


@settings(max_examples=example_count(60), deadline=None)
@given(st.data())
def test_no_block_is_lost_whatever_is_held_and_released(data: st.DataObject) -> None:
    pool = BlockPool(data.draw(st.integers(1, 12), label="size"))
    held: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 40), label="length")):
        match data.draw(st.sampled_from(["allocate", "fill", "acquire", "release", "forget"])):
            case "allocate":
                count = data.draw(st.integers(0, 4))
                expected = count <= pool.free
                blocks = pool.allocate(count)
                assert (blocks is not None) == expected
                held.append(blocks or [])
            case "fill" if pool.free >= 3:
                held.append(filled(pool, 3, data.draw(st.sampled_from("abc"))))
            case "acquire":
                blocks = pool.lookup(digests_of(3, data.draw(st.sampled_from("abc"))))
                pool.acquire(blocks)
                held.append(blocks)
            case "release" if held:
                pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
            case "forget" if held:
                pool.uncache(held[data.draw(st.integers(0, len(held) - 1))])
        pool.check_integrity(held)
        assert pool.used == len(Counter(block for blocks in held for block in blocks))
    for blocks in held:
        pool.release(blocks)
    pool.check_integrity([])
    assert pool.free == pool.total
