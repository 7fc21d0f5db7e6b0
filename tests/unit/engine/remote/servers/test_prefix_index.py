"""Who has which prefix of a sequence."""

from hypothesis import given
from hypothesis import strategies as st

from engine.remote.servers.prefix_index import MAX_OWNERS, STRIDE, PrefixIndex


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{position}".encode() for position in range(length)]


def test_the_owner_of_the_longest_prefix_is_returned() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    conversation = chain("c", 40)
    index.add(conversation[:10], "a")
    index.add(conversation[:21], "b")
    assert index.longest(conversation, ["a", "b"]) == ["b"]
    assert index.longest(conversation, ["a"]) == ["a"]
    assert index.longest(conversation[:10], ["b"]) == ["b"]


@given(st.integers(1, 50), st.integers(0, 50))
def test_every_prefix_is_found_again_by_its_continuation(known: int, more: int) -> None:
    index: PrefixIndex[str] = PrefixIndex()
    conversation = chain("c", known + more)
    index.add(conversation[:known], "a")
    assert index.longest(conversation, ["a", "b"]) == ["a"]


def test_owners_of_a_shared_beginning_are_all_returned() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    start = chain("system", STRIDE)
    index.add([*start, *chain("x", 5)], "a")
    index.add([*start, *chain("y", 5)], "b")
    assert set(index.longest([*start, *chain("z", 5)], ["a", "b", "c"])) == {"a", "b"}
    assert index.longest([*start, *chain("y", 7)], ["a", "b", "c"]) == ["b"]


def test_an_unknown_sequence_has_no_owner() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    assert index.longest(chain("c", 3), ["a"]) == []
    index.add(chain("c", 3), "a")
    assert index.longest(chain("d", 30), ["a"]) == []
    assert index.longest([], ["a"]) == []


def test_a_forgotten_owner_has_no_prefix_until_it_is_added_again() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.add(chain("c", 30), "a")
    index.forget("a")
    assert index.longest(chain("c", 30), ["a"]) == []
    index.add(chain("c", 8), "a")
    assert index.longest(chain("c", 30), ["a"]) == ["a"]


def test_the_index_is_bounded_and_the_least_recently_used_prefix_goes_first() -> None:
    index: PrefixIndex[str] = PrefixIndex(max_entries=8)
    for name in "pqrs":
        index.add(chain(name, 3 * STRIDE), "a")
        assert len(index) <= 8
    assert index.longest(chain("p", 3 * STRIDE), ["a"]) == []
    assert index.longest(chain("s", 3 * STRIDE), ["a"]) == ["a"]


def test_a_prefix_has_a_bounded_number_of_owners_and_the_latest_stay() -> None:
    index: PrefixIndex[int] = PrefixIndex()
    for owner in range(20):
        index.add(chain("c", 5), owner)
    assert index.longest(chain("c", 5), range(20)) == list(range(19, 19 - MAX_OWNERS, -1))
