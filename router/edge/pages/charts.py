"""Charts for templates; all lengths are in units of the SVG's view box."""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

WIDTH = 760
HEIGHT = 220
LEFT = 64
TOP = 10
BOTTOM = 24
_INNER = HEIGHT - TOP - BOTTOM
_MAX_LABELS = 8
_LABEL = 70
"""Max number of labels below the axis, and the width of one."""
SERIES = 6
"""Number of colours; further series are summed as the last one."""


class Mark(msgspec.Struct, frozen=True):
    """Label of an axis, or bar; `size` is a bar's height."""

    x: float
    y: float
    text: str = ""
    size: float = 0.0
    series: int = 0


class Chart(msgspec.Struct, frozen=True):
    """Chart with axes and bars."""

    ticks: list[Mark]
    """Labels of the y axis."""
    labels: list[Mark]
    """Labels of the x axis."""
    series: list[str]
    bars: list[Mark] = []
    bar_width: float = 0.0


def bars(
    values: Mapping[str, Mapping[str, int]], columns: Sequence[str], shown: Callable[[int], str]
) -> Chart:
    """Return a chart of stacked bars. `values`: by series, in stacking order, and by column."""
    names = list(values) if len(values) <= SERIES else [*list(values)[: SERIES - 1], "others"]
    sums = {column: [0] * len(names) for column in columns}
    for place, series in enumerate(values.values()):
        for column, value in series.items():
            sums[column][min(place, len(names) - 1)] += value
    highest = max(map(sum, sums.values()), default=0) or 1
    step = (WIDTH - LEFT) / max(1, len(columns))
    marks: list[Mark] = []
    for number, column in enumerate(columns):
        y = float(HEIGHT - BOTTOM)
        for place, value in enumerate(sums[column]):
            if value:
                size = value / highest * _INNER
                y -= size
                x = round(LEFT + number * step, 2)
                marks.append(
                    Mark(
                        x,
                        round(y, 2),
                        f"{column} {names[place]}: {shown(value)}",
                        round(size, 2),
                        place,
                    )
                )
    ticks = [
        Mark(LEFT, TOP + _INNER * (1 - share), shown(round(highest * share)))
        for share in (0, 0.5, 1)
    ]
    every = math.ceil(len(columns) / _MAX_LABELS) or 1
    labels = [
        Mark(LEFT + number * step, HEIGHT - 8, columns[number])
        for number in range(0, len(columns), every)
    ]
    labels = [label for label in labels if label.x < WIDTH - _LABEL]
    return Chart(ticks, labels, names, marks, round(max(0.5, step - min(2, step / 5)), 2))
