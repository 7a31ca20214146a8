"""How far the judge and exact match agree."""

from collections.abc import Iterable

import msgspec

from benchmarks.study.result_row import Scored


class Agreement(msgspec.Struct, frozen=True):
    """Counts of rollouts that the judge was asked about."""

    both: int
    """Right by exact match and by the judge."""
    exact_match_only: int
    judge_only: int
    neither: int
    unreadable: int
    """Replies of the judge; they count in its score, and not in `kappa`."""

    @property
    def kappa(self) -> float | None:
        """Cohen's: 1 where they always agree, 0 where they do as often as chance would have it; None where one of them
        never varies, as then there is nothing to agree on.
        """
        of = self.both + self.exact_match_only + self.judge_only + self.neither
        counts = self.both + self.exact_match_only, self.both + self.judge_only
        if any(count in (0, of) for count in counts):
            return None
        matched, accepted = (count / of for count in counts)
        by_chance = matched * accepted + (1 - matched) * (1 - accepted)
        return ((self.both + self.neither) / of - by_chance) / (1 - by_chance)


def agreement(rows: Iterable[Scored]) -> Agreement:
    """Count them."""
    counts = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    unreadable = 0
    for row in rows:
        if row.accepted is None:
            unreadable += row.judged
        else:
            counts[row.exact_match, row.accepted] += 1
    return Agreement(counts[True, True], counts[True, False], counts[False, True], counts[False, False], unreadable)
