"""Tokens and money by role over logged traffic, and the cost that it would have had with other
models.

`--instead execution=MODEL` gives the same tokens another price; `--instead execution=MODEL*0.628`
takes into account that a distilled executor needs fewer (0.628 of a frontier model's, 4,758 of
7,577, in TBSS Fig. 3). The others spend what they spent, and the other models are taken to answer
as well; machines that stand idle, and training, cost nothing here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.study.spending import tokens
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
    """Its options."""

    store: Annotated[str, Meta(description="a gateway's, such as sqlite:///rolegate.db")]
    prices: (
        Annotated[
            Path, Meta(description="TOML: of each model prompt, completion, cached; $ a million")
        ]
        | None
    ) = None
    instead: Annotated[
        tuple[str, ...], Meta(description="ROLE=MODEL[*SHARE]: what if this model had that role")
    ] = ()


class Costs(msgspec.Struct, frozen=True):
    """The cost by role and model."""

    rows: list[RoleTotal]
    dollars: float | None
    """None where the price or the usage of any call is unknown, which is not zero."""
    execution_token_share: float


class CostReport(msgspec.Struct, frozen=True):
    """Costs as booked, and with other models."""

    runs: int
    booked: Costs
    what_if: Costs | None
    saved_share: float | None


async def measure(options: Options) -> CostReport:
    """Sum up. Raises `BadConfig` and `StoreFailed`."""
    advice = "write a table for each model, with prompt and completion"
    prices = (
        read_json(options.prices, dict[str, Price], advice, msgspec.toml.decode)
        if options.prices
        else {}
    )
    instead = dict(map(_instead, options.instead))
    known = {**prices, **{other.model: _price(other.model, prices) for other in instead.values()}}
    runs, totals = await _booked(options.store)
    booked = _costs(with_other_models(totals, prices))
    if not instead:
        return CostReport(runs, booked, None, None)
    what_if = _costs(with_other_models(totals, known, instead))
    saved = (
        1 - what_if.dollars / booked.dollars
        if booked.dollars and what_if.dollars is not None
        else None
    )
    return CostReport(runs, booked, what_if, saved)


def shown(figures: dict[str, Any]) -> None:
    """Print the costs, with dollars of each row."""
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
    return Costs(rows, dollars(rows), tokens(rows, "execution") / max(1, tokens(rows)))


async def _booked(url: str) -> tuple[int, list[RoleTotal]]:
    """The runs of a store and their totals, sums of deleted runs included."""
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).expanduser().exists():
        raise BadConfig(f"--store {url}: there is no such file; name the store of a gateway.")
    async with opened(url) as database:
        report = await SQLUsages(database).usage(UsageQuery(by=("role", "model", "manager")))
    return report.runs, msgspec.convert(report.rows, list[RoleTotal], from_attributes=True)


def _price(model: str, prices: Mapping[str, Price]) -> Price:
    price = prices.get(model) or listed_price(model)
    if price is None:
        where = (
            "give it in a file with --prices, or install the extra litellm, which brings a "
            "table of prices"
        )
        raise BadConfig(f"{model}: nobody knows its price; {where}.")
    return price


def _instead(text: str) -> tuple[RoleName, Instead]:
    role, _, rest = text.partition("=")
    try:
        return next(name for name in get_args(RoleName) if name == role), Instead.parse(rest)
    except (StopIteration, ValueError):
        roles = ", ".join(get_args(RoleName))
        raise BadConfig(
            f"--instead {text}: write ROLE=MODEL or ROLE=MODEL*SHARE, with a role of "
            f"{roles} and a share of the tokens "
            "above 0."
        ) from None
