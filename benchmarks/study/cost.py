"""Tokens and money of logged traffic by role, and its estimated cost with other models.

`--instead execution=MODEL` prices the same tokens with another model; `--instead
execution=MODEL*0.628` also scales them, because a distilled executor needs fewer (0.628 of a
frontier model's, 4,758 of 7,577, in TBSS Fig. 3). Other roles spend the same, and the other model
is assumed to answer as well; idle machines and training are not counted.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from benchmarks import harness
from executor_sft.command import show
from executor_sft.jsonl import read_json
from router.errors import BadConfig
from router.ledger import UsageQuery
from router.ledger.usage import Instead, dollars, with_other_models
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


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the command."""

    store: Annotated[str, Meta(description="store of a gateway, such as sqlite:///rolegate.db")]
    prices: (
        Annotated[
            Path, Meta(description="TOML file: prompt, completion, cached by model; $ per million")
        ]
        | None
    ) = None
    instead: Annotated[
        tuple[str, ...],
        Meta(description="ROLE=MODEL[*SHARE]: estimate with this model in that role"),
    ] = ()


class Costs(msgspec.Struct, frozen=True):
    """Cost by role and model."""

    rows: list[RoleTotal]
    dollars: float | None
    """None if price or usage of any call is unknown."""
    execution_token_share: float


class CostReport(msgspec.Struct, frozen=True):
    """Booked cost, and the estimate with other models."""

    runs: int
    booked: Costs
    what_if: Costs | None
    saved_share: float | None


async def measure(options: Options) -> CostReport:
    """Compute the cost. Raises `BadConfig` and `StoreFailed`."""
    prices: dict[str, Price] = {}
    if options.prices:
        advice = "write a table for each model, with prompt and completion"
        prices = read_json(options.prices, dict[str, Price], advice, msgspec.toml.decode)
    instead = dict(map(_instead, options.instead))
    known = {**prices, **{other.model: _price(other.model, prices) for other in instead.values()}}
    runs, totals = await _booked(options.store)
    booked = _costs(with_other_models(totals, prices))
    if not instead:
        return CostReport(runs, booked, None, None)
    what_if = _costs(with_other_models(totals, known, instead))
    saved = None
    if booked.dollars and what_if.dollars is not None:
        saved = 1 - what_if.dollars / booked.dollars
    return CostReport(runs, booked, what_if, saved)


def shown(figures: dict[str, Any]) -> None:
    """Print the cost, with dollars in each row."""
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


def _costs(rows: list[RoleTotal]) -> Costs:
    spent = Counter[str]()
    for row in rows:
        spent[row.role] += row.prompt_tokens + row.completion_tokens
    return Costs(rows, dollars(rows), spent["execution"] / max(1, spent.total()))


async def _booked(url: str) -> tuple[int, list[RoleTotal]]:
    """Return the number of runs of a store and their totals, deleted runs included."""
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).expanduser().exists():
        raise BadConfig(f"--store {url}: no such file; name the store of a gateway.")
    async with opened(url) as database:
        report = await SQLUsages(database).usage(UsageQuery(by=("role", "model", "manager")))
    return report.runs, msgspec.convert(report.rows, list[RoleTotal], from_attributes=True)


def _price(model: str, prices: Mapping[str, Price]) -> Price:
    price = prices.get(model) or listed_price(model)
    if price is None:
        raise BadConfig(
            f"{model}: unknown price; give it with --prices, or install the extra litellm, "
            "which has a price table."
        )
    return price


def _instead(text: str) -> tuple[RoleName, Instead]:
    role, _, model = text.partition("=")
    try:
        return msgspec.convert(role, RoleName), Instead.parse(model)
    except (msgspec.ValidationError, ValueError):
        raise BadConfig(
            f"--instead {text}: write ROLE=MODEL or ROLE=MODEL*SHARE, with a role of "
            f"{', '.join(get_args(RoleName))} and a share of the tokens above 0."
        ) from None
