"""Garbage collection of a process that has started and goes on for long."""

import gc

_YOUNG, _MIDDLE, _OLD = 10_000, 5, 2
"""Python's own first threshold, 700 objects, is passed by a single question. Older ones are few here, and soon looked
through: what a question leaves behind is not to wait for thousands of others.
"""


def collect_seldom() -> None:
    """Look for cycles less often, and never again among what is there by now, which will stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
