"""What was renamed, dropped or added on purpose since the contract was recorded; empty on the
commit it is of.

Names of the recording stand on the left. On the right stands what they are called now, or `Dropped`
with the reason why they are gone. Sections:

    config      dotted keys of the config file: "search.max_rounds" rpc
    "AnswerService/Answer" messages    names of messages and enums: "AnswerRequest" fields
    fields of messages, also of requests: "fresh", or with the field around it "usage.model" values
    values of enums, "RUN_KIND_SHADOW", and words in a field, "outcome=discarded" trace       dotted
    places in a run's trace: "result.executions" upstream    fields of requests to models:
    "structured_outputs" http        routes and fields of the OpenAI-compatible server: "GET
    /health", "rolegate" metrics     names of metrics, "rolegate_runs_total", and with a label:
    "rolegate_calls_total.purpose" reasons     reasons of errors: "UPSTREAM_GARBLED" commands
    commands and their options: "usage reconcile", "serve --workers" json        keys of what
    commands print as JSON sql         tables and columns: "runs.trace" texts       words that
    people read, wherever they stand: '(README, "Real models")' scenarios   whole scenarios,
    "early-guess-wasted", or a part of one: "early-guess-wasted/upstream" added       what came
    after the recording, with its section: "fields: table_id"
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dropped:
    """It is gone."""

    reason: str
    """Why; a sentence."""


_MANAGERS = (
    "Managers stand between the delegator and workers, in a topology of their own and in tables."
)
_OF_MANAGERS = "manager", "workers", "worker", "sub_query"
_VALUES_OF_MANAGERS = "TOPOLOGY_HOST", "EXECUTION_OUTCOME_ESCALATED", "USAGE_DIMENSION_MANAGER"
_UNSUPPORTED = "An answer says whether its evidence supports it."
_DOUBT = "Unsupported: no retrieved passage holds all of this answer; check it."
_TABLES = "Tables, filled by wide search."
_OF_TABLES = (
    *("CellState", "ColumnType", "Support", "TableOutcome", "TableTopology"),
    *(
        "Cell",
        "Claim",
        "Column",
        "Completeness",
        "GivenRow",
        "Planned",
        "Row",
        "RowChanged",
        "Table",
    ),
    *("FillTableRequest", "FillTableResponse", "GetTableRequest", "GetTableResponse"),
    *(
        "StreamTableRequest",
        "StreamTableResponse",
        "columns",
        "row_id",
        "table_event",
        "table_outcome",
    ),
)

RENAMED: dict[str, dict[str, str | Dropped]] = {
    "config": {
        "server.keep_gb": Dropped("Retention goes by days alone."),
        "search.scope": "search.vocabulary",
        "reuse": "report_cache",
        "reuse.enabled": "report_cache.enabled",
        "reuse.keep_s": "report_cache.keep_s",
        "reuse.across_tenants": "report_cache.across_tenants",
        "search.max_passage_chars": Dropped("Nobody turned it; it is a constant of the executor."),
        "search.max_report_chars": Dropped("Nobody turned it; it is a constant of the executor."),
        "reuse.most": Dropped("Nobody turned it; it is a constant of the report cache."),
        "roles.connect_timeout_s": Dropped("Nobody turned it; it is a constant of the client."),
        "roles.hedge_percentile": Dropped("Calls are not hedged any more."),
        "retrieval.batching": Dropped(
            "Nobody turned it; waits and sizes are constants of the searcher."
        ),
        "retrieval.embedder.kind": Dropped(
            "An embedder elsewhere is known by its engine or base_url."
        ),
        "versions.gate.error": Dropped(
            "Nobody turned it; the probability of a wrong decision is a constant."
        ),
        "versions.gate.most_trials": Dropped("Nobody turned it; the most trials are a constant."),
        "versions.gate.most_tokens": "versions.gate.max_tokens_ratio",
        "topologies.single_agent.max_tokens": Dropped(
            "It may write as much as the roles that it stands for."
        ),
        "topologies.no_retrieval.max_tokens": Dropped(
            "It may write as much as the roles that it stands for."
        ),
    },
    "rpc": {},
    "messages": {},
    "fields": {"fresh": "no_cache", "gold_answer": "right_answer"},
    "values": {
        "outcome=discarded": "wasted",
        "outcome=unreachable": "connect_error",
        "outcome=garbled": "protocol_error",
    },
    "trace": {},
    "upstream": {},
    "http": {"GET /nowhere": "GET /v1/nowhere"},  # other paths are those of pages
    "metrics": {
        "rolegate_hedges_total": Dropped("Calls are not hedged any more."),
    },
    "reasons": {
        "UPSTREAM_GARBLED": "UPSTREAM_PROTOCOL_ERROR",
        "SAME_ID": "DUPLICATE_ID",
        "TOO_MUCH": "DOCUMENT_TOO_LARGE",
    },
    "commands": {
        "ask --fresh": "ask --no-cache",
        "serve --workers": Dropped(
            "Several gateways share one PostgreSQL behind a gRPC balancer instead."
        ),
        "bench budgets": Dropped("Quotas under many requests at once are tested."),
        "bench chaos": Dropped("Its checks are those of bench reliability."),
        "bench crashes": Dropped("Its checks are those of bench reliability."),
        "bench documents": Dropped("Searches of one's own documents are tried by rolegate search."),
        "bench index": Dropped(
            "bench retrieval builds an index and says how many passages a second."
        ),
        "bench executor": Dropped(
            "Its claim is settled; bench overhead measures the gateway against bare means."
        ),
        "bench executors": Dropped("bench sweep compares executors under one backbone."),
        "bench durability": Dropped("It measured a single feature of the store."),
        "bench fuzz": Dropped("Every target has a property beside its reader's tests."),
        "bench reconciliation": Dropped("Its checks are those of bench reliability."),
        "bench lag": Dropped("Tests bound the time that hostile texts take."),
        "bench retrieval-load": Dropped("It is a part of bench retrieval."),
        "bench usage": Dropped("Exact sums and their plans are tested."),
        "sft mini-evaluate": Dropped("A mini model is judged by what the gateway answers with it."),
    },
    "json": {
        "gold_answer": "right_answer",
        "cells.model": Dropped("That a model is not served is told in the cell of its endpoint."),
        "cells.thinking": Dropped("A turn that is cut off is told where it broke the protocol."),
        "spent.reserved_tokens": Dropped(
            "What runs under way may cost is known to their gateway alone."
        ),
        "spent.reserved_nano_usd": Dropped(
            "What runs under way may cost is known to their gateway alone."
        ),
        "cells.streamed usage": Dropped(
            "Turns are streamed as the gateway streams them, so it is the usage."
        ),
    },
    "sql": {
        "feedback.gold_answer": "feedback.right_answer",
        "runs.trace_bytes": Dropped("Only server.keep_gb asked for it."),
    },
    "texts": {
        # The answers of these gateways stand in no passage.
        **{f"{answer}\n\nSources:": f"{answer}\n\n{_DOUBT}\n\nSources:" for answer in ("42", "7")},
        " (facts.md)": " (facts\\.md)",  # no chat tool makes a link of it
        '(README, "Real models")': "(docs/documents.md says how)",
        # A shadow is judged by a judge model alone, and goes on without where there is none.
        "yet on correctness (evidence 1 of 20), failures (evidence 1.02": "yet on failures (evidence 1.02",
        "no run has been judged by feedback": (
            "no answer has been judged, as a shadow's are by a judge alone (distillation.judge)"
        ),
    },
    "scenarios": {
        **dict.fromkeys(
            ("delegator-says-nothing", "answerer-says-nothing", "answerer-only-thinks"),
            Dropped("Reasoning without text is asked for once more, without stop strings."),
        ),
        "delegator-thinks": Dropped("Its thoughts are told from its text, which is understood."),
        "a-version-as-canary/upstream": Dropped(
            "A canary that works for all runs is compared with nothing."
        ),
    },
    "added": {
        **{f"{kind}: unsupported": _UNSUPPORTED for kind in ("fields", "json", "http", "trace")},
        "commands: runs list --unsupported": _UNSUPPORTED,
        "fields: cut": "A result whose evidence had no room in a message says so.",
        "commands: index build --verbose": "It names the files of kinds that are not read.",
        "json: passed_over_files": "The files of kinds that are not read.",
        "json: cut": "A result whose evidence had no room in a message says so.",
        "json: files_not_read": "The number of files that are not read, by suffix.",
        "json: read_in_part": "The files that are read but for some parts.",
        "json: index": "What the index lacks of the files at its places.",
        "upstream: structured_outputs": "It is sent from the first call on, not only once a reply has had the form.",
        "commands: store backup": "A copy of a SQLite store that opens by itself.",
        "fields: resume_run_id": "An interrupted run goes on.",
        "commands: runs resume": "An interrupted run goes on.",
        "commands: search": "Passages of a running gateway's index.",
        "commands: runs show --prompts": "It shows what each model read and wrote.",
        "commands: serve --log-format": "Logs for programs.",
        "fields: EvidenceSource": "Every decision on a version says whose evidence it rests on.",
        "fields: sources": "Every decision on a version says whose evidence it rests on.",
        "json: sources": "Every decision on a version says whose evidence it rests on.",
        "fields: document": "A search within one document, which executors may open.",
        **{
            f"rpc: TableService/{name}": _TABLES
            for name in ("FillTable", "StreamTable", "GetTable")
        },
        **{f"fields: {name}": _TABLES for name in _OF_TABLES},
        **{f"json: {name}": _TABLES for name in ("columns", "row_id", "table_outcome")},
        "values: RUN_KIND_TABLE": _TABLES,
        "commands: table": _TABLES,
        "commands: bench widesearch": _TABLES,
        **{f"{kind}: {name}": _MANAGERS for kind in ("fields", "json") for name in _OF_MANAGERS},
        **{f"values: {name}": _MANAGERS for name in _VALUES_OF_MANAGERS},
        "json: tools": "`check --live` lists the tools of their servers.",
        "commands: runs export --for": "Trajectories of agents with their rewards, for reinforcement.",
        "commands: bench reliability": "Kills and failing upstreams in one benchmark instead of four.",
    },
}
