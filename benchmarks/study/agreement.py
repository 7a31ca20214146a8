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
        if not of:
            return None
        matched, accepted = (self.both + self.exact_match_only) / of, (self.both + self.judge_only) / of
        by_chance = matched * accepted + (1 - matched) * (1 - accepted)
        return None if by_chance == 1 else ((self.both + self.neither) / of - by_chance) / (1 - by_chance)


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
