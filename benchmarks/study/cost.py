"""Show tokens and cost of a gateway's runs, by role, and estimate their cost with other models.

`--instead execution=MODEL` estimates the cost if MODEL had been the executor, with the same number
of tokens. `--instead execution=MODEL*0.628` assumes 0.628 times as many tokens: a distilled
executor needs fewer than a frontier model (4,758 instead of 7,577 in TBSS, Fig. 3).

The estimate assumes that answers stay equally good and that the other roles use the same tokens.
The cost of idle machines and of training is not included.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from benchmarks import harness
from executor_sft.command import show
from executor_sft.jsonl import read_json
from router.errors import BadConfig
from router.frozen import Frozen
from router.ledger import UsageQuery
from router.ledger.usage import dollars
from router.models import Usage
from router.store import SQLUsages, opened
from router.trace import Price, RoleName
from router.trace.call import RoleTotal
from serving.config.prices import listed_price

_SHOWN = (
    "role",
    "model",
    "attempts",
    "attempts_without_usage",
    "prompt_tokens",
    "completion_tokens",
    "wasted_tokens",
)


class _Instead(NamedTuple):
    """Another model for a role. `token_share`: number of tokens that this model is assumed to need,
    as a multiple of the recorded number.
    """

    model: str
    token_share: float = 1.0


def _priced(total: RoleTotal, prices: Mapping[str, Price], other: _Instead) -> RoleTotal:
    if (price := prices.get(other.model)) is None:
        return total

    share = other.token_share
    cached = None if total.cached_tokens is None else round(share * total.cached_tokens)
    usage = Usage(
        round(share * total.prompt_tokens), round(share * total.completion_tokens), cached
    )
    return msgspec.structs.replace(
        total,
        model=other.model,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        attempts_without_cost=total.attempts_without_usage,
        nano_usd=None if total.attempts_without_usage else price.cost(usage),
    )


class Options(harness.Options):
    """Options of `rolegate bench cost`."""

    store: str
    """store of a gateway, as a URL such as sqlite:///rolegate.db"""
    prices: Path | None = None
    """TOML file of prices in dollars per million tokens. Each model has a table, such as ["gpt-5"],
    with the keys prompt, completion and cached (default: the prices at the time of the calls)
    """
    instead: tuple[str, ...] = ()
    """estimate the cost with another model in a role: ROLE=MODEL or ROLE=MODEL*FACTOR. ROLE is
    delegation, execution or answer. The role's number of tokens is multiplied by FACTOR (default:
    1)
    """


class Costs(Frozen):
    """Cost of all runs, by role and model."""

    rows: list[RoleTotal]
    dollars: float | None
    """Total cost in dollars; None if the price or the token count of any call is unknown."""
    execution_token_share: float
    """Share of all tokens that executors used."""


class CostReport(Frozen):
    """Recorded cost, and the estimate with other models."""

    runs: int
    """Number of runs."""
    booked: Costs
    what_if: Costs | None
    """Estimated cost with other models; None without `--instead`."""
    saved_share: float | None
    """Share of the recorded cost that the other models would save; None if unknown."""


async def measure(options: Options) -> CostReport:
    """Return the recorded cost of the runs, and the estimate of their cost with other models.
    Raises `BadConfig` for bad options or an unknown price, and `StoreFailed` if the store cannot be
    read.
    """
    prices = dict[str, Price]()
    if options.prices:
        advice = "name a TOML file with a table for each model, with prompt and completion"
        prices = read_json(options.prices, dict[str, Price], advice, msgspec.toml.decode)
    instead = dict(map(_instead, options.instead))
    known = {**prices, **{other.model: _price(other.model, prices) for other in instead.values()}}
    runs, totals = await _booked(options.store)
    booked = _costs(totals, prices)
    if not instead:
        return CostReport(runs, booked, None, None)
    what_if = _costs(totals, known, instead)
    saved = None
    if booked.dollars and what_if.dollars is not None:
        saved = 1 - what_if.dollars / booked.dollars
    return CostReport(runs, booked, what_if, saved)


def shown(figures: dict[str, Any]) -> None:
    """Print the cost as tables, in dollars."""
    for name in ("booked", "what_if"):
        if costs := figures.pop(name):
            rows = [
                {key: row[key] for key in _SHOWN} | {"dollars": _dollars(row)}
                for row in costs.pop("rows")
            ]
            show({name: rows, f"{name}, all": costs})
    show(figures)


def _dollars(row: dict[str, Any]) -> float | None:
    return None if row["attempts_without_cost"] else (row["nano_usd"] or 0) / 1e9


def _costs(
    totals: Iterable[RoleTotal],
    prices: Mapping[str, Price],
    instead: Mapping[RoleName, _Instead] = {},
) -> Costs:
    """Return the cost of `totals` with new prices. Totals of models that are not in `prices` keep
    their recorded cost.

    `instead`: other models, by role; `prices` must have all these models.
    """
    rows = [
        _priced(total, prices, instead.get(total.role, _Instead(total.model))) for total in totals
    ]
    spent = Counter[str]()
    for row in rows:
        spent[row.role] += row.prompt_tokens + row.completion_tokens
    return Costs(rows, dollars(rows), spent["execution"] / max(1, spent.total()))


async def _booked(url: str) -> tuple[int, list[RoleTotal]]:
    """Return the number of runs in a store, and the totals of their calls by role, model and
    manager. Deleted runs are included.
    """
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).expanduser().exists():
        raise BadConfig(f"--store {url}: this file does not exist; name the store of a gateway.")
    async with opened(url) as database:
        report = await SQLUsages(database).usage(UsageQuery(by=("role", "model", "manager")))
    return report.runs, msgspec.convert(report.rows, list[RoleTotal], from_attributes=True)


def _price(model: str, prices: Mapping[str, Price]) -> Price:
    price = prices.get(model) or listed_price(model)
    if price is None:
        raise BadConfig(
            f"{model}: its price is unknown; add the model to the file of --prices, or install the "
            "extra litellm, which has a table of prices."
        )
    return price


def _instead(text: str) -> tuple[RoleName, _Instead]:
    role, _, other = text.partition("=")
    model, _, share = other.partition("*")
    try:
        instead = _Instead(model.strip(), float(share or 1))
        if not instead.model or not 0 < instead.token_share <= 1000:
            raise ValueError
        return msgspec.convert(role, RoleName), instead
    except (msgspec.ValidationError, ValueError):
        raise BadConfig(
            f"--instead {text}: write ROLE=MODEL or ROLE=MODEL*FACTOR. ROLE is one of "
            f"{', '.join(get_args(RoleName))}; FACTOR is a number above 0 and at most 1000."
        ) from None
