"""What rolling out logged runs again would take, by what they took."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from router.models.model import Usage
from router.trace.call import Call, Price, RoleName, totals

_CAPPED_SHARE = 0.4
"""Of a teacher's executor runs that search twice, and may be repeated with one search (TBSS Table 4)."""
_LED_SHARE = 1.0
"""Of the backbone's and the answerer's work, done again where other reports lead to other ends."""
_TIMES: Mapping[str, tuple[RoleName, float]] = {
    "delegation": ("delegation", 1 + _LED_SHARE),
    "teacher": ("execution", 1 + _CAPPED_SHARE),
    "student": ("execution", 1),
    "answer": ("answer", 1 + _LED_SHARE),
}
"""Whose tokens each of them is expected to need, and how many times."""
_EVALUATED = "delegation", "student", "answer"


class Share(msgspec.Struct, frozen=True):
    """What one of them is expected to need for all questions."""

    name: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    """None where the price is not known."""


def estimate(
    calls: Sequence[Call],
    prices: Mapping[str, Price | None],
    shared: Sequence[Usage] = (),
    evaluated: float = 0.0,
) -> list[Share]:
    """`calls`: of the logged runs; what is not known of them counts like the mean of the others. `prices`: of
    delegation, teacher, student and answer. `shared`: of the executors whose reports the runs had from others.
    `evaluated`: runs of an evaluation that follows, for each logged one. The judge, asked little, is left out.
    """
    spared = sum(usage.prompt_tokens for usage in shared), sum(usage.completion_tokens for usage in shared)
    needed: dict[RoleName, tuple[float, float]] = {"execution": spared}
    for total in totals(calls):
        known = total.attempts - total.attempts_without_usage
        scale = total.attempts / known if known else 0.0
        prompt_tokens, completion_tokens = needed.get(total.role, (0.0, 0.0))
        needed[total.role] = (
            prompt_tokens + scale * total.prompt_tokens,
            completion_tokens + scale * total.completion_tokens,
        )
    nothing = 0.0, 0.0
    shares = [_share(name, needed.get(role, nothing), times, prices[name]) for name, (role, times) in _TIMES.items()]
    if evaluated:
        runs = [_share(name, needed.get(_TIMES[name][0], nothing), evaluated, prices[name]) for name in _EVALUATED]
        shares.append(_sum("evaluation", runs))
    return shares


def estimate_table(shares: Sequence[Share]) -> Table:
    """A row for each, and their sum."""
    table = Table("role", title="What that would take, about", title_justify="left")
    for column in ("prompt tokens", "written", "dollars"):
        table.add_column(column, justify="right")
    for share in (*shares, _sum("all", shares)):
        dollars = "unknown" if share.dollars is None else f"{share.dollars:.4f}"
        table.add_row(share.name, f"{share.prompt_tokens:,}", f"{share.completion_tokens:,}", dollars)
    return table


def _sum(name: str, shares: Sequence[Share]) -> Share:
    known = [share.dollars for share in shares if share.dollars is not None]
    return Share(
        name,
        sum(share.prompt_tokens for share in shares),
        sum(share.completion_tokens for share in shares),
        sum(known) if len(known) == len(shares) else None,
    )


def _share(name: str, needed: tuple[float, float], times: float, price: Price | None) -> Share:
    prompt_tokens, completion_tokens = (round(times * tokens) for tokens in needed)
    dollars = None if price is None else price.cost(Usage(prompt_tokens, completion_tokens)) / 1e9
    return Share(name, prompt_tokens, completion_tokens, dollars)
