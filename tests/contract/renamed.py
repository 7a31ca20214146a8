"""What was renamed, dropped or added on purpose since the contract was recorded; empty on the commit it is of.

Names of the recording stand on the left. On the right stands what they are called now, or `Dropped` with the reason
why they are gone. Sections:

    config      dotted keys of the config file: "search.max_rounds"
    rpc         "AnswerService/Answer"
    messages    names of messages and enums: "AnswerRequest"
    fields      fields of messages, also of requests: "fresh", or with the field around it "usage.model"
    values      values of enums, "RUN_KIND_SHADOW", and words in a field, "outcome=discarded"
    trace       dotted places in a run's trace: "result.executions"
    upstream    fields of requests to models: "structured_outputs"
    http        routes and fields of the OpenAI-compatible server: "GET /health", "rolegate"
    metrics     names of metrics, "rolegate_runs_total", and with a label: "rolegate_calls_total.purpose"
    reasons     reasons of errors: "UPSTREAM_GARBLED"
    commands    commands and their options: "usage reconcile", "serve --workers"
    json        keys of what commands print as JSON
    sql         tables and columns: "runs.trace"
    scenarios   whole scenarios, "early-guess-wasted", or a part of one: "early-guess-wasted/upstream"
    added       what came after the recording, with its section: "fields: table_id"
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dropped:
    """It is gone."""

    reason: str
    """Why; a sentence."""


RENAMED: dict[str, dict[str, str | Dropped]] = {
    "config": {
        "server.keep_gb": Dropped("How long runs are kept is told by server.keep_days alone."),
    },
    "rpc": {},
    "messages": {},
    "fields": {},
    "values": {},
    "trace": {},
    "upstream": {},
    "http": {},
    "metrics": {
        "rolegate_hedges": Dropped("Calls are not made a second time beside a slow one any more."),
    },
    "reasons": {},
    "commands": {
        "serve --workers": Dropped("Several gateways share one PostgreSQL behind any balancer for gRPC."),
    },
    "json": {},
    "sql": {
        "runs.trace_bytes": Dropped("Only server.keep_gb asked for it."),
    },
    "scenarios": {},
    "added": {},
}
