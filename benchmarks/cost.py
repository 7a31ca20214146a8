"""Tokens and money by role over logged traffic, and the cost that it would have had with other models.

`--instead execution=MODEL` gives the same tokens another price; `--instead execution=MODEL*0.628` takes into account
that a distilled executor needs fewer (0.628 of a frontier model's, 4,758 of 7,577, in TBSS Fig. 3). The others spend
what they spent, and the other models are taken to answer as well; machines that stand idle, and training, cost nothing
here.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.study.spending import Instead, dollars, tokens, with_other_models
from router.errors import BadConfig
from router.ledger.usage import UsageQuery
from router.store.database import Database
from router.store.usage import SQLUsages
from router.trace.call import Price, RoleName, RoleTotal
from serving.config.prices import listed_price
from serving.logs import errors_only

_COUNTS = {
    "calls": "attempts",
    "un-\ncounted": "attempts_without_usage",
    "prompt\ntokens": "prompt_tokens",
    "of them\ncached": "cached_tokens",
    "written": "completion_tokens",
    "wasted": "wasted_tokens",
}


class Costs(msgspec.Struct, frozen=True):
    """The cost by role and model."""

    rows: list[RoleTotal]
    dollars: float | None
    """None where the price or the usage of any call is unknown, which is not zero."""
    execution_token_share: float


class CostReport(msgspec.Struct, frozen=True):
    """Everything that the command prints."""

    runs: int
    booked: Costs
    what_if: Costs | None
    saved_share: float | None


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
        "--instead",
        action="append",
        default=[],
        metavar="ROLE=MODEL[*SHARE]",
        help="what if this model stood in a role, for this share of the tokens; several are one change",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    errors_only()
    prices = _prices(given.prices) if given.prices else {}
    instead = dict(map(_instead, given.instead))
    report = _report(*asyncio.run(_booked(given.store)), prices, instead)
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, instead, Console())
    return 0


def _report(
    runs: int, totals: Sequence[RoleTotal], prices: Mapping[str, Price], instead: Mapping[RoleName, Instead]
) -> CostReport:
    booked = _costs(with_other_models(totals, prices))
    if not instead:
        return CostReport(runs, booked, None, None)
    known = {**prices, **{other.model: _price(other.model, prices) for other in instead.values()}}
    what_if = _costs(with_other_models(totals, known, instead))
    saved = 1 - what_if.dollars / booked.dollars if booked.dollars and what_if.dollars is not None else None
    return CostReport(runs, booked, what_if, saved)


def _costs(rows: list[RoleTotal]) -> Costs:
    return Costs(rows, dollars(rows), tokens(rows, "execution") / max(1, tokens(rows)))


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
        where = "give it in a file with --prices, or install the extra litellm, which brings a table of prices"
        raise BadConfig(f"{model}: nobody knows its price; {where}.")
    return price


def _instead(text: str) -> tuple[RoleName, Instead]:
    try:
        role, _, rest = text.partition("=")
        model, _, share = rest.partition("*")
        known = next(name for name in get_args(RoleName) if name == role and model)
        other = Instead(model, float(share or 1))
    except (StopIteration, ValueError):
        roles = ", ".join(get_args(RoleName))
        raise BadConfig(f"--instead {text}: write ROLE=MODEL or ROLE=MODEL*SHARE, with a role of {roles}.") from None
    if not 0 < other.token_share < float("inf"):
        raise BadConfig(f"--instead {text}: the share of the tokens must be more than 0.")
    return known, other


def _show(report: CostReport, instead: Mapping[RoleName, Instead], console: Console) -> None:
    console.print(_table(report.booked, f"{report.runs:,} runs, as booked"))
    console.print(f"execution has {report.booked.execution_token_share:.1%} of the tokens", highlight=False)
    if report.what_if:
        changed = (
            f"{role} = {other.model} with {other.token_share:.3g} of the tokens" for role, other in instead.items()
        )
        console.print(_table(report.what_if, f"the same runs, what if {', '.join(changed)}"))
        saved = "unknown, as not every cost is" if report.saved_share is None else f"{report.saved_share:.1%}"
        console.print(f"saved: {saved}", highlight=False)


def _table(costs: Costs, title: str) -> Table:
    table = Table(title=title, title_justify="left", caption="–: unknown, which is not zero")
    table.box, table.padding, table.show_edge = SIMPLE_HEAD, 0, False  # so that numbers are whole on 80 columns
    for column in ("role", "model"):
        table.add_column(column, overflow="fold")
    for column in (*_COUNTS, "dollars"):
        table.add_column(column, justify="right", no_wrap=True)
    counts = [[getattr(row, name) for name in _COUNTS.values()] for row in costs.rows]
    for row, own in zip(costs.rows, counts, strict=True):
        table.add_row(row.role, row.model, *map(_count, own), _dollars(dollars([row])))
    table.add_section()
    sums = [None if None in column else sum(column) for column in zip(*counts, strict=True)]
    table.add_row("all", "", *map(_count, sums or [0] * len(_COUNTS)), _dollars(costs.dollars))
    return table


def _count(amount: int | None) -> str:
    return "–" if amount is None else f"{amount:,}"


def _dollars(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:,.4f}"
