"""Support of a value by the passages that its executor was shown.

A value is `stated` if a sentence holds it and that sentence, a neighbouring one or the passage's
title names the row; `value_only` if a sentence holds it, but the row is not named nearby; else
`unsupported`.
"""

from collections.abc import Collection, Iterable
from functools import cache
from itertools import accumulate, chain

from router.folding import fold, sought
from router.protocol import Passage
from router.table.cell_value import values_in
from router.trace.citation import MAX_CITED, Citation, citation, read
from router.trace.table import Column, Support


class Shown:
    """Passages that an executor was shown, each once."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list({passage.id: passage for passage in passages}.values())
        self._readings = [read(passage.text) for passage in self._passages]
        self._titles = [fold(passage.title) for passage in self._passages]
        self._values = cache(self._by_value)

    def support(
        self,
        column: Column,
        value: str,
        form: str,
        names: Collection[str],
    ) -> tuple[Support, tuple[Citation, ...]]:
        """Return the support of a value, with a sentence of each passage that holds it. `form`: its
        canonical form; `names`: folded names of its row.
        """
        wanted = sought(value)
        kind = Column("", column.type, unit=column.unit)
        typed = self._values(kind)

        def worth(excerpt: str, folded: str) -> int:
            holds = wanted in folded or any(
                value.startswith(form) for value in values_in(kind, excerpt)
            )
            return 2 * holds + any(name in folded for name in names)

        stated = list[Citation]()
        unnamed = list[Citation]()
        for passage, reading, title, values in zip(
            self._passages, self._readings, self._titles, typed, strict=True
        ):
            places = [*reading.places(wanted), *values.get(form, ())]
            if not places:
                continue
            named = set(chain.from_iterable(map(reading.places, names)))
            titled = any(name in title for name in names)
            near = [at for at in places if titled or not named.isdisjoint((at - 1, at + 1))]
            best = [at for at in places if at in named] or near
            sentence = reading.sentences[(best or places)[0]]
            (stated if best else unnamed).append(citation(passage, sentence, worth))

        if stated:
            return "stated", tuple(stated[:MAX_CITED])
        return "value_only" if unnamed else "unsupported", tuple(unnamed[:MAX_CITED])

    def _by_value(self, column: Column) -> list[dict[str, list[int]]]:
        """Return for each passage the sentences of its numbers or dates; of a date, also under its
        year and its month.
        """
        places_of_passages = list[dict[str, list[int]]]()
        for reading in self._readings:
            places: dict[str, list[int]] = {}
            for at, sentence in enumerate(reading.sentences):
                for form in values_in(column, sentence):
                    for part in accumulate(form.split("-"), "{}-{}".format):
                        places.setdefault(part, []).append(at)
            places_of_passages.append(places)
        return places_of_passages
