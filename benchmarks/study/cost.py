"""Tokens and money of logged traffic by role, and its estimated cost with other models.

`--instead execution=MODEL` prices the same tokens with another model; `--instead
execution=MODEL*0.628` also scales them, because a distilled executor needs fewer (0.628 of a
frontier model's, 4,758 of 7,577, in TBSS Fig. 3). Other roles spend the same, and the other model
is assumed to answer as well; idle machines and training are not counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import msgspec
from msgspec import Meta

from benchmarks import harness
from executor_sft.command import show
from executor_sft.jsonl import read_json
from router.errors import BadConfig
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
    """Another model for a role, and the share of the tokens that it would use."""

    model: str
    token_share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "_Instead":
        """Parse `MODEL` or `MODEL*SHARE`. Raises `ValueError`."""
        model, _, share = text.partition("*")
        instead = cls(model.strip(), float(share or 1))
        if not instead.model or not 0 < instead.token_share <= 1000:
            raise ValueError(
                "write MODEL or MODEL*SHARE, with a share of the tokens above 0, at most 1000"
            )
        return instead


def _with_other_models(
    totals: Iterable[RoleTotal],
    prices: Mapping[str, Price],
    instead: Mapping[RoleName, _Instead] = {},
) -> list[RoleTotal]:
    """Price totals again: with `prices` for the models in it, and as booked for others.

    `instead`: replacements by role, all of whose models are in `prices`.
    """
    return [
        _priced(total, prices, instead.get(total.role, _Instead(total.model))) for total in totals
    ]


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
    booked = _costs(_with_other_models(totals, prices))
    if not instead:
        return CostReport(runs, booked, None, None)
    what_if = _costs(_with_other_models(totals, known, instead))
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


def _instead(text: str) -> tuple[RoleName, _Instead]:
    role, _, model = text.partition("=")
    try:
        return msgspec.convert(role, RoleName), _Instead.parse(model)
    except (msgspec.ValidationError, ValueError):
        raise BadConfig(
            f"--instead {text}: write ROLE=MODEL or ROLE=MODEL*SHARE, with a role of "
            f"{', '.join(get_args(RoleName))} and a share of the tokens above 0."
        ) from None
