"""Garbage collection of a process that has started and goes on for long."""

import gc

_YOUNG = 10_000
"""Python's own threshold, 700 objects, is passed by a single question."""


def collect_seldom() -> None:
    """Look for cycles less often, and never again among what is there by now, which will stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
