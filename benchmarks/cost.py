"""Tokens and money by role over logged traffic, and what it would have cost with other models.

`--instead execution=MODEL` gives the same tokens another price. `--distilled MODEL` does so for the executor, and takes
into account that a distilled one needs fewer: what that assumes is printed with the figure.
"""

import argparse
import asyncio
from collections.abc import Sequence, Set
from pathlib import Path
from typing import get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.study.repricing import PUBLISHED_RATIO, CostRow, Costs, as_booked, saved_share, token_share, what_if
from benchmarks.study.traffic import Traffic, of_store, of_traces
from router.errors import BadConfig
from router.trace.call import Price, RoleName
from serving.config.prices import listed_price
from serving.logs import errors_only


class WhatIf(msgspec.Struct, frozen=True):
    """Other models in some roles."""

    instead: dict[RoleName, str]
    token_ratio: float
    costs: Costs
    dollars: float | None
    saved_share: float | None
    assumptions: tuple[str, ...]


class CostReport(msgspec.Struct, frozen=True):
    """Everything."""

    runs: int
    booked: Costs
    dollars: float | None
    execution_token_share: float
    what_if: tuple[WhatIf, ...]


def main(arguments: Sequence[str]) -> int:
    """Print the costs."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", metavar="URL", help="a gateway's store, such as sqlite:///rolegate.db")
    source.add_argument("--traces", type=Path, metavar="FILE", help="what `rolegate runs export` wrote, as JSON lines")
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
    traffic = asyncio.run(of_store(given.store)) if given.store else of_traces(given.traces)
    report = _report(traffic, given)
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, Console())
    return 0


def _report(traffic: Traffic, given: argparse.Namespace) -> CostReport:
    """Raises `BadConfig` for a model without a price."""
    prices = _prices(given.prices) if given.prices else {}
    booked, found = as_booked(traffic, prices), list[WhatIf]()
    if instead := dict(map(_instead, given.instead)):
        assumed = ("The other models read and write as many tokens, and answer as well.",)
        found.append(_what_if(traffic, prices, instead, 1.0, assumed))
    if given.distilled:
        if not given.distilled_tokens > 0:
            raise BadConfig(f"--distilled-tokens {given.distilled_tokens}: must be more than 0.")
        found.append(_distilled(traffic, prices, given.distilled, given.distilled_tokens))
    return CostReport(traffic.runs, booked, booked.dollars, token_share(booked, ("execution",)), tuple(found))


def _distilled(traffic: Traffic, prices: dict[str, Price], model: str, ratio: float) -> WhatIf:
    published = abs(ratio - PUBLISHED_RATIO) < 1e-9
    assumed = (
        f"The distilled executor reads and writes {ratio:.3f} of the tokens of the one that worked"
        + (", as published for SFT-Qwen3-1.7B beside DeepSeek-V4-Flash (TBSS Fig. 3)." if published else "."),
        "Every token costs what its price says: machines that stand idle are not in it, nor is the training.",
        "Delegation and answering spend what they spent; its reports are as good: `rolegate sft evaluate` tells.",
        "All of the traffic goes to it, fallbacks and retries included.",
    )
    return _what_if(traffic, prices, {"execution": model}, ratio, assumed)


def _what_if(
    traffic: Traffic,
    prices: dict[str, Price],
    instead: dict[RoleName, str],
    ratio: float,
    assumptions: tuple[str, ...],
) -> WhatIf:
    known = prices | {model: _price(model, prices) for model in instead.values()}
    costs = what_if(traffic, known, instead, ratio)
    return WhatIf(instead, ratio, costs, costs.dollars, saved_share(as_booked(traffic, prices), costs), assumptions)


def _prices(path: Path) -> dict[str, Price]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Price])
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a TOML file.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}; write a table for each model, with prompt and completion.") from None


def _price(model: str, prices: dict[str, Price]) -> Price:
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
    names = ("calls", "un-\ncounted", "prompt\ntokens", "of them\ncached", "written", "wasted")
    for column in (*names, "dollars"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = [_amounts(row) for row in costs.rows]
    for row, amounts in zip(costs.rows, rows, strict=True):
        other = " (instead)" if row.role in changed else ""
        table.add_row(row.role, f"{row.model}{other}", *map(_count, amounts), _dollars(row.dollars))
    table.add_section()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    sums = (None if None in column else sum(column) for column in columns)
    table.add_row("all", "", *map(_count, sums), _dollars(costs.dollars))
    return table


def _amounts(row: CostRow) -> tuple[float | None, ...]:
    return (
        row.attempts,
        row.attempts_without_usage,
        row.prompt_tokens,
        row.cached_tokens,
        row.completion_tokens,
        row.wasted_tokens,
    )


def _count(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:,.0f}"


def _dollars(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:,.4f}"
