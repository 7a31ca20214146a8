"""Write docs/errors.md, docs/metrics.md and docs/rpc.md from the code and the protos. With
`--check`, write nothing; exit with status 1 if a file is out of date.
"""

import inspect
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.rpc import code_pb2
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from router import errors
from router.calls import Readiness, Upstreams
from router.calls.replicas import BreakerState
from router.edge.status import HTTP_STATUS, STATUS
from router.runs import Admission
from router.search.report_cache import ReportCounts
from router.trace.call import Outcome, Purpose, RoleName
from router.trace.run import RunKind, RunStatus
from router.trace.table import TableOutcome
from router.trace.values import AnswerOutcome
from serving.telemetry.metrics import Gauges, Metrics

ROOT = Path(__file__).resolve().parents[1]
REMEDIES: dict[type[errors.RolegateError], str] = {
    errors.BadRequest: "Correct the field that the message names.",
    errors.BadConfig: "Run `rolegate check`, and correct the keys that it names.",
    errors.StoreInUse: "Stop the other process, or set another `server.store` for this one.",
    errors.BadIndex: "Run `rolegate index build` again; it indexes only what is missing.",
    errors.BadCorpus: "Correct the row that the message names.",
    errors.DuplicateId: "Give each row an id that no other row has.",
    errors.BadDocument: "Check whether another program can open the file; repair or remove it.",
    errors.DocumentTooLarge: "Split the file, or leave it out.",
    errors.BadVersion: "Publish the version again, for the engine's base model.",
    errors.NotFound: "Check the run id, and whether the key belongs to the run's tenant.",
    errors.KeyNotFound: "List all keys with `rolegate keys list`.",
    errors.TenantNotFound: "List all tenants with `rolegate tenants list`.",
    errors.IndexNotFound: "Leave `index` out, or name an index that the key may use.",
    errors.DocumentNotFound: "List the tenant's documents with `rolegate documents list`.",
    errors.RequestIdTaken: "Use a new `request_id` for each request.",
    errors.RunCancelled: "Send the request again if you still want the answer.",
    errors.RunInterrupted: "Resume the run (`rolegate runs resume`), or send the request again.",
    errors.OutOfTime: "Pass a longer `--timeout` (`timeout_s`), or raise `server.timeout_s`.",
    errors.BudgetExhausted: "Raise the request's budget to the amount that the message names.",
    errors.QuotaExhausted: (
        "Retry after the pause that the error names, or raise the limit (`rolegate tenants set`, "
        "`rolegate keys limit`)."
    ),
    errors.PriceUnknown: "Set the model's price in `[prices]`, or limit tokens instead of money.",
    errors.NoText: "Add documents of the formats in docs/documents.md.",
    errors.UploadsFull: "Delete documents, or raise the limits of `[uploads]`.",
    errors.Starting: "Retry after the pause that the error names.",
    errors.Overloaded: "Retry after the pause that the error names.",
    errors.SlowReader: "Read the stream while it arrives, or use the RPC that does not stream.",
    errors.AccessDenied: "Use a key with the scope that the message names.",
    errors.NoKey: "Send a valid key as `authorization: Bearer …` (`rolegate keys create`).",
    errors.StoreFailed: (
        "Free disk space, or make the database available again. No answer that a client has "
        "received is lost."
    ),
    errors.UpstreamUnavailable: "Retry later; `rolegate check --live` shows what is down.",
    errors.UpstreamRefused: "Correct the role's model name, key or parameters.",
    errors.ContextTooLong: "Lower `search.top_k`, or serve the model with a longer context.",
    errors.ContentRefused: "Ask another question, or use another model for the role.",
    errors.UpstreamProtocolError: (
        "Check that the address in the config belongs to an OpenAI-compatible endpoint."
    ),
    errors.ToolFailed: (
        "Check whether the tool's server works; `rolegate check --live` lists the server's tools."
    ),
    errors.MalformedOutput: (
        "Use a model that follows the role's prompt. For an executor on vLLM, do not set "
        "`roles.execution.structured` to false."
    ),
}
"""Remedy of each error: the sentence in the column `remedy` of docs/errors.md."""
_METRICS_OPENING = """\
# Metrics

A gateway serves these metrics for Prometheus at the path `/metrics` of the address in the config
key [`telemetry.metrics`](configuration.md#telemetry), without a key:

```toml
[telemetry]
metrics = "127.0.0.1:9464"
```

The names of counters end in `_total`. A histogram has the suffixes `_bucket`, `_sum` and `_count`.
[Operating](operating.md#what-to-watch) names the metrics to watch first, ready alerts, and a
dashboard for Grafana. `make docs` makes this page.

- A *call* asks a model for one output. It is made of one or more *attempts*, that is, requests to a
  model endpoint: if one fails, the gateway tries again.
- A *deployment* is the place where a model is served: `engines.NAME` for an engine that the gateway
  starts, the address of an endpoint (`base_url`), or the provider if LiteLLM calls the model.
- A *fallback role* takes over the calls of a role whose own model is unavailable (the config key
  `roles.NAME.fallbacks`).
- A *circuit breaker* stops the attempts at a deployment after five failures in a row. Then it lets
  one attempt through after 1 s, and after pauses that double up to 30 s, until one succeeds.

| name | kind | labels | meaning |
|---|---|---|---|"""
_LABELS_OPENING = """
The metrics `rolegate_process_…` describe the gateway's process.

## Labels

| label | metrics | values |
|---|---|---|"""
_VALUES: tuple[tuple[str, str, tuple[object, ...], dict[str, str]], ...] = (
    (
        "role",
        "all with this label",
        (RoleName,),
        {
            "delegation": "delegator",
            "execution": "executors; also a reranker's calls",
            "answer": "answerer",
            "judge": "`[distillation.judge]`",
        },
    ),
    (
        "purpose",
        "`rolegate_calls_total`",
        (Purpose,),
        {
            "first": "first attempt of a call",
            "retry": "after an attempt that failed",
            "correction": "the previous output was malformed",
            "shortened": "the previous prompt was too long",
            "fallback": "by a fallback role",
            "shadow": "by an executor version on trial",
            "condense": "rewrites a follow-up question",
            "rerank": "reorders the passages of a search",
        },
    ),
    (
        "outcome",
        "`rolegate_calls_total`",
        (Outcome,),
        {
            "completed": "complete output",
            "wasted": "complete output that was discarded",
            "connect_error": "the endpoint was not reached",
            "unavailable": "the endpoint failed, or the connection broke",
            "refused": "the endpoint refused the request",
            "content_refused": "the model or a content filter declined",
            "protocol_error": "invalid reply",
            "cancelled": "by the gateway",
            "failed": "any other error",
            "interrupted": "the gateway was killed",
        },
    ),
    (
        "outcome",
        "`rolegate_runs_total`; empty for the kinds `complete` and `execute`, and without a result",
        (AnswerOutcome, TableOutcome),
        {
            "answered": "the delegator found the evidence sufficient",
            "filled": "the delegator wanted no more rows, and nothing was left to look up",
            "rounds_exhausted": "`search.max_rounds` was reached",
            "rows_exhausted": "the limit of rows was reached",
            "tasks_exhausted": "the limit of executors' work was reached",
            "time_exhausted": "the time ran out",
            "budget_exhausted": "budget or quota was used up",
            "delegation_failed": "the delegator failed",
            "no_search": "the delegator asked for no search",
            "out_of_scope": "words that the demo's models do not know",
            "not_found": "the reports have no answer",
            "clarify": "the answer is a question to the user",
        },
    ),
    (
        "kind",
        "`rolegate_runs_total`, `rolegate_run_seconds`",
        (RunKind,),
        {
            "answer": "a question",
            "table": "a table",
            "complete": "one completion by a role's model",
            "execute": "one sub-query",
            "shadow": "repeats a finished run with another executor version",
        },
    ),
    (
        "status",
        "`rolegate_runs_total`",
        (RunStatus,),
        {
            "finished": "with a result",
            "failed": "with an error",
            "cancelled": "on request, or because the client disconnected",
            "interrupted": "the gateway stopped or was killed",
            "running": "",
        },
    ),
    (
        "state",
        "`rolegate_breaker_state`",
        (BreakerState,),
        {
            "closed": "attempts are made",
            "open": "no attempts are made",
            "half_open": "one attempt probes the deployment",
        },
    ),
)
"""Labels whose values are listed in the code: the label, its metrics, the types that list its
values, and the meaning of each value. A value with an empty meaning does not occur in metrics.
"""
_OTHER_VALUES = (
    (
        "kind",
        "`rolegate_tokens_total`",
        "`prompt`, `completion`; as parts of these: `cached`, `reasoning`",
    ),
    (
        "report",
        "`rolegate_sub_queries_total`",
        "`kept` (report from the cache), `shared` (report of another run's executor), "
        "`worked` (report of the run's own executor)",
    ),
    (
        "quota",
        "those of quotas",
        "`requests_per_day`, `tokens_per_day`, `usd_per_day`, and the same with `_per_month`",
    ),
    (
        "part",
        "`rolegate_ready`",
        "`store`, `retrieval`, `indexes.NAME`, `retrieval.embedder`, `roles.NAME`, "
        "`engines.NAME`, `tools.NAME`; `draining` while the gateway stops",
    ),
    (
        "rpc",
        "those of requests",
        "gRPC: the full name, such as `/rolegate.v1.AnswerService/Answer`; "
        "HTTP: the path, such as `/v1/chat/completions`",
    ),
    (
        "code",
        "`rolegate_requests_total`",
        "gRPC: the name of the status, such as `OK`; "
        "HTTP: the number, such as `200`, and `499` if the client disconnected",
    ),
    (
        "error",
        "`rolegate_searches_total`",
        "empty on success; otherwise the name of the error's class, such as `UpstreamUnavailable`",
    ),
    ("reason", "`rolegate_run_failures_total`", "the reasons of [errors.md](errors.md)"),
    (
        "tenant",
        "all with this label",
        "the names of the first 50 tenants; `other` for all others",
    ),
    (
        "deployment",
        "all with this label",
        "see above; such as `engines.executor`, `http://127.0.0.1:8001/v1` or `litellm:openai`",
    ),
    (
        "model",
        "`rolegate_calls_total`",
        "the model's name in the config, or the name of an executor version",
    ),
)
"""Further labels: the label, its metrics, and a description of its values."""
_SECTIONS = {"message": 4, "enum": 5, "service": 6, "field": 2, "value": 2, "method": 2}
"""Field numbers in protobuf's descriptor messages, by kind of definition. The path that identifies
a comment consists of them and of indexes.
"""


def errors_page() -> str:
    """Return the page of errors in Markdown: one row for each reason."""
    lines = [
        "# Errors",
        "",
        "Every error has a status code, a reason and a message. Over gRPC, the reason is the",
        "`reason` of the `google.rpc.ErrorInfo` in the status details. Over HTTP, it is",
        "`error.code` in the JSON body. In a stream, it is `error.type` in the event",
        "`response.failed`. The message says what is wrong and where. `make docs` makes this page.",
        "",
        "| reason | gRPC | HTTP | cause | remedy |",
        "|---|---|---|---|---|",
    ]
    for kind, (code, reason) in sorted(STATUS.items(), key=lambda row: row[1][1]):
        cause = _sentence(inspect.getdoc(kind) or "")
        status = f"{code_pb2.Code.Name(code)} | {HTTP_STATUS[code]}"
        lines.append(f"| `{reason}` | {status} | {cause} | {REMEDIES[kind]} |")
    internal = "Report the error, with the details in the gateway's log."
    lines.append(f"| `INTERNAL` | INTERNAL | 500 | A bug in the gateway. | {internal} |")
    return "\n".join([*lines, ""])


def metrics_page() -> str:
    """Return the page of metrics in Markdown: one row for each metric, and one for each label."""
    gauges = Gauges(Admission(), Upstreams(), ReportCounts(), Readiness(), lambda: 0.0)
    process = ProcessCollector(namespace="rolegate", registry=CollectorRegistry())
    metrics = [*gauges.collect(), *vars(Metrics()).values(), *process.collect()]
    rows = sorted(row for metric in metrics for row in _rows(metric))
    return "\n".join([_METRICS_OPENING, *rows, _LABELS_OPENING, *_label_rows(), ""])


def _label_rows() -> Iterator[str]:
    """Yield the rows of the table of labels. Raises `ValueError` if a value has no meaning yet."""
    for label, where, types, meanings in _VALUES:
        values = {value for kind in types for value in get_args(kind)}
        if values != set(meanings):
            raise ValueError(f"_VALUES, {label}: differs in {sorted(values ^ set(meanings))}.")
        texts = [f"`{value}` ({text})" for value, text in meanings.items() if text]
        yield f"| `{label}` | {where} | {', '.join(texts)} |"
    for label, where, text in _OTHER_VALUES:
        yield f"| `{label}` | {where} | {text} |"


def _rows(metric: object) -> Iterator[str]:
    """Yield the rows for a metric; nothing for any other object."""
    if not isinstance(metric, Metric | MetricWrapperBase):
        return
    names: Any = getattr(metric, "_labelnames", ())
    labels = ", ".join(f"`{label}`" for label in names)
    families = [metric] if isinstance(metric, Metric) else metric.describe()
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        text = _sentence(family.documentation)
        yield f"| `{name}` | {family.type} | {labels} | {text} |"


def rpc_page() -> str:
    """Return the page of RPCs, messages and enums in Markdown, from the comments in the protos."""
    lines = [
        "# RPCs",
        "",
        "The package `rolegate.v1`, from the comments in",
        "[`protos/rolegate/v1`](../protos/rolegate/v1). `make docs` makes this page.",
        "",
    ]
    for file in _descriptors().file:
        if file.package == "rolegate.v1":
            lines += _services(file)
    for file in _descriptors().file:
        if file.package == "rolegate.v1":
            lines += _types(file)
    return "\n".join(lines)


def _descriptors() -> FileDescriptorSet:
    """Compile the protos and return their descriptors, comments included."""
    with tempfile.NamedTemporaryFile() as out:
        protos = sorted(str(path) for path in (ROOT / "protos/rolegate/v1").glob("*.proto"))
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}"]
        command += ["--include_source_info", f"--descriptor_set_out={out.name}", *protos]
        subprocess.run(command, check=True)  # noqa: S603
        return FileDescriptorSet.FromString(Path(out.name).read_bytes())


def _comments(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    """Return the comment before each definition in a file. Keys are the paths by which protobuf
    identifies definitions.
    """
    return {
        tuple(location.path): " ".join(location.leading_comments.split())
        for location in file.source_code_info.location
    }


def _services(file: FileDescriptorProto) -> Iterator[str]:
    """Yield a section for each service of a file."""
    comments = _comments(file)
    for at, service in enumerate(file.service):
        path = (_SECTIONS["service"], at)
        yield from (f"## {service.name}", "", comments.get(path, ""), "")
        yield from ("| method | request | response | |", "|---|---|---|---|")
        for number, method in enumerate(service.method):
            text = comments.get((*path, _SECTIONS["method"], number), "")
            response = _link(method.output_type)
            if method.server_streaming:
                response = f"stream of {response}"
            yield f"| `{method.name}` | {_link(method.input_type)} | {response} | {text} |"
        yield ""


def _types(file: FileDescriptorProto) -> Iterator[str]:
    """Yield a section for each message and enum of a file."""
    comments = _comments(file)
    for at, message in enumerate(file.message_type):
        yield from _message(message, (_SECTIONS["message"], at), comments)
    for at, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_SECTIONS["enum"], at), comments)


def _message(
    message: DescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str]
) -> Iterator[str]:
    """Yield the section of a message."""
    yield from (f"### {message.name}", "", comments.get(path, ""), "")
    if message.field:
        yield from ("| field | type | |", "|---|---|---|")
    for number, field in enumerate(message.field):
        text = comments.get((*path, _SECTIONS["field"], number), "")
        yield f"| `{field.name}` | {_type(field)} | {text} |"
    yield ""


def _enum(
    enum: EnumDescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str]
) -> Iterator[str]:
    """Yield the section of an enum."""
    yield from (f"### {enum.name}", "", comments.get(path, ""), "", "| value | |", "|---|---|")
    for number, value in enumerate(enum.value):
        yield f"| `{value.name}` | {comments.get((*path, _SECTIONS['value'], number), '')} |"
    yield ""


def _type(field: FieldDescriptorProto) -> str:
    """Return the type of a field; a message or an enum is a link to its section."""
    if field.type_name:
        name = _link(field.type_name)
    else:
        name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return f"repeated {name}" if repeated else name


def _link(name: str) -> str:
    """Return the name of a type; for a type of the package `rolegate.v1`, a link to its section."""
    plain = name.removeprefix(".rolegate.v1.")
    if plain == name:
        return f"`{name.removeprefix('.')}`"
    return f"[{plain}](#{plain.lower()})"


def _sentence(text: str) -> str:
    """Return the first paragraph of a text in one line, with a full stop at its end."""
    line = " ".join(text.partition("\n\n")[0].split())
    return line if line.endswith(".") else f"{line}."


PAGES = {"errors.md": errors_page, "metrics.md": metrics_page, "rpc.md": rpc_page}


def main(arguments: list[str]) -> int:
    """Write the pages. With `--check`, compare the pages instead, and print the names of outdated
    pages. Return the exit status.
    """
    stale = 0
    for name, page in PAGES.items():
        path = ROOT / "docs" / name
        text = page()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"docs/{name} is out of date; run `make docs`.")
            stale += 1
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
