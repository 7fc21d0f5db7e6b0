from engine.bounded_cache import BoundedCache


def test_the_least_recently_used_is_evicted_first() -> None:
    cache = BoundedCache[tuple[str, bytes], str](10)
    for name in "abc":
        cache.put(("", name.encode()), name, 4)
        cache.get(("", b"a"))
    assert [cache.get(("", name.encode())) for name in "abc"] == ["a", None, "c"]


def test_a_value_larger_than_the_bound_stays_until_the_next() -> None:
    cache = BoundedCache[tuple[str, bytes], str](10)
    cache.put(("", b"a"), "a", 100)
    assert cache.get(("", b"a")) == "a"
    cache.put(("", b"b"), "b", 1)
    assert cache.get(("", b"a")) is None
    assert cache.get(("", b"b")) == "b"


def test_salts_share_nothing() -> None:
    cache = BoundedCache[tuple[str, bytes], str](10)
    cache.put(("one", b"a"), "a", 1)
    assert cache.get(("other", b"a")) is None


def test_a_value_that_is_put_twice_counts_once() -> None:
    cache = BoundedCache[tuple[str, bytes], str](10)
    for _ in range(9):
        cache.put(("", b"a"), "a", 6)
    cache.put(("", b"b"), "b", 4)
    assert cache.get(("", b"a")) == "a"
    cache.clear()
    assert cache.get(("", b"a")) is None
