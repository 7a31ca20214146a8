"""Which cells are run with the same engines up."""

from collections.abc import Sequence

from benchmarks.study.cell import Prepared


def engine_groups(cells: Sequence[Prepared], at_once: int) -> list[list[Prepared]]:
    """The cells, each in the first group that then needs at most `at_once` engines, as starting them takes long; a cell
    that needs more stands alone.
    """
    groups: list[list[Prepared]] = []
    running: list[frozenset[str]] = []
    for cell in cells:
        fits = (number for number, engines in enumerate(running) if len(engines | cell.engines) <= at_once)
        if (number := next(fits, None)) is None:
            groups.append([cell])
            running.append(cell.engines)
        else:
            groups[number].append(cell)
            running[number] |= cell.engines
    return groups
