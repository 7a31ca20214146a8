"""What nothing else beats in both score and cost."""

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of `(cost, score)` no other has at the same cost or less with a higher score, or at the same score with
    less; in the order of their cost. Of equal ones, all.
    """
    front: list[int] = []
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    for index in order:
        if not front or points[index][1] > points[front[-1]][1] or points[index] == points[front[-1]]:
            front.append(index)
    return front
