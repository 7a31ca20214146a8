"""Which cells are run with the same engines up."""

from collections.abc import Sequence

from benchmarks.study.cell import Prepared


def engine_groups(cells: Sequence[Prepared], at_once: int) -> list[list[Prepared]]:
    """The cells in order, split so that the cells of a group need at most `at_once` engines; a cell that needs more
    stands alone.
    """
    groups: list[list[Prepared]] = []
    running: frozenset[str] = frozenset()
    for cell in cells:
        if not groups or len(running | cell.engines) > at_once:
            groups.append([])
            running = frozenset()
        groups[-1].append(cell)
        running |= cell.engines
    return groups
