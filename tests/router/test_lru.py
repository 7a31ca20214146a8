from router.lru import LRU


def test_what_was_not_used_for_longest_goes() -> None:
    """Looking a value up counts as a use, and so does keeping it again."""
    kept = LRU[str, int](2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == (1, None, 3, 2)
    kept.put("a", 4)
    kept.put("d", 5)
    assert (kept.get("a"), kept.get("c")) == (4, None)
    kept.remove("a")
    kept.remove("a")
    assert (kept.get("a"), len(kept)) == (None, 1)


def test_nothing_is_kept_in_no_places() -> None:
    """Zero switches it off."""
    kept = LRU[str, int](0)
    kept.put("a", 1)
    assert (kept.get("a"), len(kept)) == (None, 0)


def test_what_is_stale_makes_room() -> None:
    """From the one that was not used for longest, up to the first that is not stale."""
    kept = LRU[str, int](4)
    for key, value in (("a", 1), ("b", 2), ("c", 9), ("d", 1)):
        kept.put(key, value)
    kept.forget(lambda value: value < 5)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), kept.get("d")) == (None, None, 9, 1)
    kept.forget(lambda _value: True)
    assert len(kept) == 0
