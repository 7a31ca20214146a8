"""Tokens and money by role over logged traffic, and the cost that it would have had with other models.

`--instead execution=MODEL` gives the same tokens another price. `--distilled MODEL` does so for the executor, and takes
into account that a distilled one needs fewer: the assumptions are printed with the figure.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.study.spending import dollars, tokens, with_other_models
from router.errors import BadConfig
from router.ledger.usage import UsageQuery
from router.store.database import Database
from router.store.usage import SQLUsages
from router.trace.call import Price, RoleName, RoleTotal
from serving.config.prices import listed_price
from serving.logs import errors_only

PUBLISHED_RATIO = 4758 / 7577
"""Executor tokens of the distilled model over those of the frontier model that it replaces (TBSS Fig. 3)."""


class Costs(msgspec.Struct, frozen=True):
    """The cost by role and model."""

    rows: list[RoleTotal]
    dollars: float | None
    """None where the price or the usage of any call is unknown, which is not zero."""


class WhatIf(msgspec.Struct, frozen=True):
    """The same traffic with other models in some roles."""

    instead: dict[RoleName, str]
    token_ratio: float
    costs: Costs
    saved_share: float | None
    assumptions: tuple[str, ...]


class CostReport(msgspec.Struct, frozen=True):
    """Everything that the command prints."""

    runs: int
    booked: Costs
    execution_token_share: float
    what_if: list[WhatIf]


def main(arguments: Sequence[str]) -> int:
    """Print the costs. Raises `BadConfig` and `StoreFailed`."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True, metavar="URL", help="a gateway's, such as sqlite:///rolegate.db")
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="TOML, for each model a table with prompt, completion and perhaps cached, in dollars for a million tokens",
    )
    parser.add_argument(
        "--instead", action="append", default=[], metavar="ROLE=MODEL", help="what if; several are one change"
    )
    parser.add_argument("--distilled", metavar="MODEL", help="what if this distilled model were the executor")
    parser.add_argument(
        "--distilled-tokens",
        type=float,
        default=PUBLISHED_RATIO,
        metavar="SHARE",
        help=f"of the executor tokens, which it needs (default: {PUBLISHED_RATIO:.3f}, as published)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    errors_only()
    report = asyncio.run(_report(given))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, Console())
    return 0


async def _report(given: argparse.Namespace) -> CostReport:
    prices = _prices(given.prices) if given.prices else {}
    runs, totals = await _booked(given.store)
    rows, what_if = with_other_models(totals, prices), list[WhatIf]()
    booked = Costs(rows, dollars(rows))

    def add(instead: dict[RoleName, str], ratio: float, *assumptions: str) -> None:
        known = prices | {model: _price(model, prices) for model in instead.values()}
        other = with_other_models(totals, known, instead, ratio)
        costs = Costs(other, dollars(other))
        saved = 1 - costs.dollars / booked.dollars if booked.dollars and costs.dollars is not None else None
        what_if.append(WhatIf(instead, ratio, costs, saved, assumptions))

    if given.instead:
        instead = dict(map(_instead, given.instead))
        add(instead, 1.0, "The other models read and write as many tokens, and answer as well.")
    if given.distilled:
        ratio = given.distilled_tokens
        if not ratio > 0:
            raise BadConfig(f"--distilled-tokens {ratio}: must be more than 0.")
        published = ", as published for SFT-Qwen3-1.7B beside DeepSeek-V4-Flash (TBSS Fig. 3)"
        add(
            {"execution": given.distilled},
            ratio,
            f"The distilled executor reads and writes {ratio:.3f} of the tokens of the one that worked"
            + (f"{published}." if abs(ratio - PUBLISHED_RATIO) < 1e-9 else "."),
            "Every token costs what its price says: machines that stand idle are not in it, nor is the training.",
            "Delegation and answering spend what they spent; its reports are as good: `rolegate sft evaluate` tells.",
            "All of the traffic goes to it, fallbacks and retries included.",
        )
    whole = tokens(rows)
    return CostReport(runs, booked, tokens(rows, "execution") / whole if whole else 0.0, what_if)


async def _booked(url: str) -> tuple[int, list[RoleTotal]]:
    """The runs of a store and their totals, sums of deleted runs included."""
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).expanduser().exists():
        raise BadConfig(f"--store {url}: there is no such file; name the store of a gateway.")
    database = await Database.open(url)
    try:
        report = await SQLUsages(database).usage(UsageQuery())
    finally:
        await database.close()
    return report.runs, msgspec.convert(report.rows, list[RoleTotal], from_attributes=True)


def _prices(path: Path) -> dict[str, Price]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Price])
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a TOML file.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}; write a table for each model, with prompt and completion.") from None


def _price(model: str, prices: Mapping[str, Price]) -> Price:
    price = prices.get(model) or listed_price(model)
    if price is None:
        raise BadConfig(
            f"{model}: nobody knows its price; give it in a file with --prices, or install the extra litellm, which "
            "brings a table of prices."
        )
    return price


def _instead(text: str) -> tuple[RoleName, str]:
    role, _, model = text.partition("=")
    known: dict[str, RoleName] = {name: name for name in get_args(RoleName)}
    if role not in known or not model:
        raise BadConfig(f"--instead {text}: write ROLE=MODEL, with a role of {', '.join(known)}.")
    return known[role], model


def _show(report: CostReport, console: Console) -> None:
    console.print(_table(report.booked, f"{report.runs:,} runs, as booked"))
    console.print(f"execution has {report.execution_token_share:.1%} of the tokens", highlight=False)
    for one in report.what_if:
        changed = ", ".join(f"{role} = {model}" for role, model in one.instead.items())
        console.print(_table(one.costs, f"the same runs, what if {changed}", changed=set(one.instead)))
        saved = "unknown, as not every cost is" if one.saved_share is None else f"{one.saved_share:.1%}"
        console.print(f"saved: {saved}", highlight=False)
        for assumption in one.assumptions:
            console.print(f"  assumed: {assumption}", highlight=False)


def _table(costs: Costs, title: str, changed: Set[str] = frozenset()) -> Table:
    table = Table(title=title, title_justify="left", caption="–: unknown, which is not zero")
    table.box, table.padding, table.show_edge = SIMPLE_HEAD, 0, False  # so that numbers are whole on 80 columns
    for column in ("role", "model"):
        table.add_column(column, overflow="fold")
    columns = {
        "calls": "attempts",
        "un-\ncounted": "attempts_without_usage",
        "prompt\ntokens": "prompt_tokens",
        "of them\ncached": "cached_tokens",
        "written": "completion_tokens",
        "wasted": "wasted_tokens",
    }
    for column in (*columns, "dollars"):
        table.add_column(column, justify="right", no_wrap=True)
    counts = [[getattr(row, name) for name in columns.values()] for row in costs.rows]
    for row, own in zip(costs.rows, counts, strict=True):
        model = f"{row.model} (instead)" if row.role in changed else row.model
        table.add_row(row.role, model, *map(_count, own), _dollars(dollars([row])))
    table.add_section()
    sums = [None if None in column else sum(column) for column in zip(*counts, strict=True)]
    table.add_row("all", "", *map(_count, sums or [0] * len(columns)), _dollars(costs.dollars))
    return table


def _count(amount: int | None) -> str:
    return "–" if amount is None else f"{amount:,}"


def _dollars(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:,.4f}"
