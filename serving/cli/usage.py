"""`rolegate usage`: tokens and cost of a running gateway's calls.

`rolegate usage reconcile` compares what is on the books with what the engines themselves counted.
"""

import argparse
from collections.abc import Sequence
from datetime import UTC
from typing import Literal

from rich.console import Console
from rolegate.client import Client
from rolegate.client.text import csv_text
from rolegate.v1 import usage_service_pb2 as pb

from router.errors import BadConfig
from serving.cli.options import (
    FORMATS,
    add_connection,
    json_of,
    new_parser,
    time_argument,
    with_client,
)
from serving.cli.tables import TIMES, grouped_table, labels, uncounted, word

Dimension = Literal["tenant", "role", "model", "executor_version", "manager"]
_DIMENSIONS: dict[str, Dimension] = {
    "tenant": "tenant",
    "role": "role",
    "model": "model",
    "version": "executor_version",
    "manager": "manager",
}
_FIGURES = (
    "attempts",
    "attempts_without_usage",
    "attempts_without_cost",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "wasted_tokens",
    "cost_nano_usd",
)
COLUMNS = ("time", *_DIMENSIONS, *_FIGURES)
"""Those of the CSV, always all of them, and the keys of the JSON. What is unknown or not split
by is left empty.
"""


def usage(arguments: Sequence[str]) -> int:
    """`rolegate usage` or `rolegate usage reconcile`."""
    if arguments[:1] == ["reconcile"]:
        return _reconcile(arguments[1:])
    parser = new_parser("usage", __doc__)
    what = "of tenant, role, model, version and manager (default: role model)"
    parser.add_argument("--by", nargs="+", default=["role", "model"], metavar="NAME", help=what)
    parser.add_argument("--per", choices=list(TIMES), help="split time, in UTC")
    parser.add_argument("--since", type=time_argument, metavar="TIME", help=FORMATS)
    parser.add_argument(
        "--until", type=time_argument, metavar="TIME", help="calls that started before"
    )
    parser.add_argument("--tenant", default="", help="one tenant's only")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV, always with the same columns")
    add_connection(parser)
    given = parser.parse_args(arguments)
    given.by = _by(given.by)
    return with_client(given, lambda client: _show(client, given))


def _by(words: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for word in words for name in word.split(",") if name))
    for name in names:
        if name not in _DIMENSIONS:
            raise BadConfig(f"--by: {name!r} is none of {', '.join(_DIMENSIONS)}.")
    return names


def _show(client: Client, given: argparse.Namespace) -> int:
    found = client.usage(
        start=given.since,
        end=given.until,
        by=[_DIMENSIONS[name] for name in given.by],
        bucket=given.per,
        tenant=given.tenant,
    )
    if given.json:
        print(json_of({"runs": found.runs, "rows": [_record(row) for row in found.rows]}))
    elif given.csv:
        rows = csv_text([COLUMNS, *(tuple(_record(row).values()) for row in found.rows)])
        print(rows.replace("\r\n", "\n"), end="")
    else:
        Console().print(grouped_table(found.rows, given.by, given.per))
        Console().print(f"{found.runs:,} runs", highlight=False)
    return 0


def _record(row: pb.UsageRow) -> dict[str, str | int | None]:
    timed = row.HasField("bucket_start_time")
    sums = row.usage
    unknown = [
        name
        for name in ("cached_tokens", "reasoning_tokens", "cost_nano_usd")
        if not sums.HasField(name)
    ]
    if uncounted(sums):
        unknown += ["prompt_tokens", "completion_tokens", "wasted_tokens"]
    return {
        "time": row.bucket_start_time.ToDatetime(UTC).isoformat() if timed else None,
        **{name: label or None for name, label in labels(row).items()},
        **{name: None if name in unknown else getattr(sums, name) for name in _FIGURES},
    }


def _reconcile(arguments: Sequence[str]) -> int:
    parser = new_parser(
        "usage reconcile",
        """Compares, for each deployment, what is on the books with what its engine has counted
        since it was started. Status 1 where they differ by more than what cut and running calls can
        have spent.""",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a line of JSON for each deployment"
    )
    add_connection(parser)
    given = parser.parse_args(arguments)

    def compare(client: Client) -> int:
        found = client.reconcile()
        for one in found:
            print(json_of(one) if given.json else "\n".join(_told(one)))
        return int(any(one.verdict == pb.RECONCILIATION_VERDICT_DIFFERENT for one in found))

    return with_client(given, compare)


def _told(found: pb.Reconciliation) -> list[str]:
    first = f"{found.deployment}: {word(pb.ReconciliationVerdict, found.verdict)}"
    if found.verdict == pb.RECONCILIATION_VERDICT_UNKNOWN:
        return [f"{first}; {found.reason}"]
    since = found.start_time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    counts = (
        f"{found.completed_calls:,} completed and {len(found.uncertain_calls):,} uncertain calls"
    )
    return [
        f"{first}; {counts} since {since}",
        f"  prompt tokens: {_compared(found.prompt_tokens)}",
        f"  completion tokens: {_compared(found.completion_tokens)}",
        *(f"  uncertain: {call}" for call in found.uncertain_calls),
    ]


def _compared(tokens: pb.ReconciledTokens) -> str:
    """Both sides, and by how much the engine is outside of what is on the books."""
    most = f" to {tokens.ledger_most:,}" if tokens.ledger_most != tokens.ledger else ""
    text = f"engine {tokens.engine:,}, ledger {tokens.ledger:,}{most}"
    if tokens.engine < tokens.ledger:
        return f"{text}: the engine counted {tokens.ledger - tokens.engine:,} fewer"
    if tokens.engine > tokens.ledger_most:
        return f"{text}: the engine counted {tokens.engine - tokens.ledger_most:,} more"
    return text
