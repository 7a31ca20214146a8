"""`rolegate usage`: tokens and cost of the model calls of a running gateway."""

from collections.abc import Sequence
from datetime import UTC
from typing import Annotated

from rolegate.client import Client
from rolegate.client.text import csv_text
from rolegate.v1 import usage_service_pb2 as pb

from router.errors import BadConfig
from router.ledger.usage import Bucket, Dimension
from serving.cli.command import exclusive, parse
from serving.cli.grid import counted
from serving.cli.options import JSONConnectionOptions, PeriodOptions, json_of, with_client
from serving.cli.tables import grouped_table, labels, uncounted, word
from serving.terminal import table_console

_DIMENSIONS: dict[str, Dimension] = {
    "tenant": "tenant",
    "role": "role",
    "model": "model",
    "version": "executor_version",
    "manager": "manager",
    "key": "key_id",
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
"""Columns of the CSV, and keys of the JSON. All of them are always present. An unknown value is
empty (null in JSON). So is a property, such as `tenant`, if the sums are not split by it.
"""


class UsageOptions(PeriodOptions):
    """Show tokens and cost of the model calls of a running gateway.

    `rolegate usage reconcile` compares the stored token counts with the engines' own counters.
    """

    by: tuple[str, ...] = ("role", "model")
    """Show one sum for each combination of these properties of calls: tenant, role, model, version
    (of the executor), manager, key (ID of the API key).
    """
    per: Bucket | None = None
    """Show separate sums for each hour, day or month, in UTC (default: sums over the whole period).
    """
    json: Annotated[bool, exclusive("format")] = False
    """Print JSON."""
    csv: Annotated[bool, exclusive("format")] = False
    """Print CSV; the columns are the same for all values of --by and --per."""


class ReconcileOptions(JSONConnectionOptions):
    """Compare the stored token counts with each vLLM engine's own counters, which begin at zero
    when the engine starts.

    The exit status is 1 if the two counts of an engine differ by more tokens than interrupted and
    running calls can explain.
    """


def usage(arguments: Sequence[str]) -> int:
    """Run `rolegate usage`, or `rolegate usage reconcile`; return the exit status."""
    if arguments[:1] == ["reconcile"]:
        return with_client(_reconcile, parse(ReconcileOptions, "usage reconcile", arguments[1:]))
    return with_client(_show, parse(UsageOptions, "usage", arguments))


def _show(client: Client, options: UsageOptions) -> None:
    # A value of --by may name several properties, such as "role,model"
    by = list(dict.fromkeys(filter(None, ",".join(options.by).split(","))))
    for name in by:
        if name not in _DIMENSIONS:
            raise BadConfig(f"--by: {name!r} is unknown; use {', '.join(_DIMENSIONS)}.")
    report = client.usage(
        start=options.since,
        end=options.until,
        by=[_DIMENSIONS[name] for name in by],
        bucket=options.per,
        tenant=options.tenant,
    )
    if options.json:
        print(json_of({"runs": report.runs, "rows": [_record(row) for row in report.rows]}))
    elif options.csv:
        rows = csv_text([COLUMNS, *(tuple(_record(row).values()) for row in report.rows)])
        print(rows.replace("\r\n", "\n"), end="")
    else:
        console = table_console()
        console.print(grouped_table(report.rows, by, options.per))
        console.print(counted(report.runs, "run"), highlight=False)


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


def _reconcile(client: Client, options: ReconcileOptions) -> int:
    reconciliations = client.reconcile()
    for reconciliation in reconciliations:
        if options.json:
            print(json_of(reconciliation))
        else:
            print("\n".join(_lines(reconciliation)))
    different = pb.RECONCILIATION_VERDICT_DIFFERENT
    return int(any(item.verdict == different for item in reconciliations))


def _lines(reconciliation: pb.Reconciliation) -> list[str]:
    verdict = word(pb.ReconciliationVerdict, reconciliation.verdict)
    first = f"{reconciliation.deployment}: {verdict}"
    if reconciliation.verdict == pb.RECONCILIATION_VERDICT_UNKNOWN:
        return [f"{first}; {reconciliation.reason}"]

    since = reconciliation.start_time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    uncertain = counted(len(reconciliation.uncertain_calls), "uncertain call")
    return [
        f"{first}; {reconciliation.completed_calls:,} completed and {uncertain} since {since}",
        f"  prompt tokens: {_compared(reconciliation.prompt_tokens)}",
        f"  completion tokens: {_compared(reconciliation.completion_tokens)}",
        *(f"  uncertain: {call}" for call in reconciliation.uncertain_calls),
    ]


def _compared(tokens: pb.ReconciledTokens) -> str:
    """Return the engine's token count and the stored token count (the ledger's) as text. The
    ledger's count is a range if the tokens of some calls are uncertain.
    """
    upper = f" to {tokens.ledger_max:,}" if tokens.ledger_max != tokens.ledger else ""
    return f"engine {tokens.engine:,}, ledger {tokens.ledger:,}{upper}"
