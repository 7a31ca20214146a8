"""The configuration: frozen values that refuse unknown keys, and values out of range.

Paths are relative to the file that they stand in, or, in a shipped preset, to the working
directory. `~` is the home folder, and `shipped:` what comes with the package, as in
`shipped:prompts/full/delegation.txt`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.inspect import DictType, Metadata, StructType, Type, UnionType, VarTupleType, type_info

from router.edge.http.chat_tasks import ChatTasks
from router.edge.listening import TLS
from router.runs.admission import AdmissionLimits
from router.table import TableLimits
from router.trace import Price, RoleName

# Texts, marked by what they are: `visit_texts` finds them, so that paths are resolved and all are
# checked.
AnyPath = Annotated[str, Meta(extra={"mark": "path"})]
File = Annotated[str, Meta(extra={"mark": "file"})]
"""A file that is there."""
Source = Annotated[str, Meta(extra={"mark": "source"})]
"""A file or a folder that is there."""
Version = Annotated[str, Meta(extra={"mark": "version"})]
"""A published version's folder."""
ModelPath = Annotated[str, Meta(extra={"mark": "model"})]
"""A model's folder, or a name that vLLM knows."""
Store = Annotated[str, Meta(extra={"mark": "store"})]
"""A database URL; the path of SQLite's is resolved."""
Address = Annotated[str, Meta(extra={"mark": "address"})]
"""host:port; port 0 takes any free one."""
Host = Annotated[str, Meta(extra={"mark": "host"})]
URL = Annotated[str, Meta(extra={"mark": "url"})]
Variable = Annotated[str, Meta(extra={"mark": "variable"})]
"""An environment variable."""
ModelName = Annotated[str, Meta(extra={"mark": "name"})]

Count = Annotated[int, Meta(ge=1, le=10**9)]
Chars = Annotated[int, Meta(ge=1, le=10**9)]
Tokens = Annotated[int, Meta(ge=1, le=10**7)]
"""Tokens of a prompt or an output."""
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Pause = Annotated[float, Meta(ge=0, le=86_400)]
"""Seconds, or 0 for none."""
Share = Annotated[float, Meta(gt=0, lt=1)]


Omitted = Literal[
    "temperature",
    "top_p",
    "seed",
    "stop",
    "stream_options",
    "chat_template_kwargs",
]
"""A parameter of a request that an endpoint can do without."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class ServerConfig(Section, frozen=True):
    """The gRPC edge and the store."""

    address: Address = "127.0.0.1:50551"
    http: Address | None = None
    """Address of the OpenAI-compatible server and of the pages; absent: neither is served."""
    http_hosts: tuple[Host, ...] = ()
    """Host names that HTTP requests for these and the metrics may use, such as gateway.example, in
    addition to IP addresses, localhost and the host of the address itself. Other names are refused.
    """
    chat_tasks: ChatTasks = "answer"
    """Handling of titles, tags and follow-up questions that chat tools request over OpenAI's
    protocol: the answerer writes them without a search; or they are refused, which costs nothing;
    or they are searched for like any question.
    """
    http_connections_per_address: Annotated[int, Meta(ge=1, le=4096)] = 1024
    """Max HTTP connections of one client address, of 4096 in all; further ones get status 429.
    Behind a reverse proxy, whose address all clients share, set 4096 and limit clients there.
    """
    store: Store = "sqlite:///rolegate.db"
    """sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE, which several gateways may
    share.
    """
    log: AnyPath | None = None
    """Folder of the log of running requests. Each gateway on PostgreSQL takes a subfolder, and
    reads it when it restarts. Absent: next to SQLite's file, or in ~/.cache/rolegate/logs.
    """
    timeout_s: Seconds = 120.0
    """Max duration of a request, even if the client's deadline is later."""
    grace_s: Pause = 30.0
    """Time for running requests to finish after SIGTERM."""
    max_question_chars: Chars = 4000
    tls: TLS | None = None
    keep_days: Annotated[float, Meta(gt=0, le=10**6)] | None = None
    """Runs that started longer ago are deleted, with their calls and traces; sums of what was
    spent stay.
    """


class SearchConfig(Section, frozen=True):
    """The search loop's budgets."""

    max_rounds: Count = 4
    """Delegator decisions (T)."""
    max_sub_queries: Count = 8
    """Sub-queries of one block that are dispatched."""
    max_turns: Annotated[int, Meta(ge=2, le=10**9)] = 3
    """Executor turns, the report included (K)."""
    max_searches: Count = 2
    """Searches of one executor."""
    top_k: Annotated[int, Meta(ge=1, le=100)] = 3
    """Passages shown for each search."""
    access: bool = False
    """Executors may open a document that a search of theirs has named, at what they look for; for
    models that follow their prompt, as small ones that were trained without it do not.
    """
    access_k: Annotated[int, Meta(ge=1, le=100)] = 10
    """Passages shown of a document that is opened."""
    access_chars: Chars = 25_000
    """Characters shown of it, and of what a tool returns, at most."""
    early_dispatch: bool = True
    """Begin with a sub-query once the delegator has written it, not when its whole block is
    written.
    """
    require_evidence: bool = True
    """Without any evidence, say "not found" instead of letting the answerer guess."""
    vocabulary: File | None = None
    """A text file of the only words and names that a question may use; for models of one small
    language.
    """


class ReportCacheConfig(Section, frozen=True):
    """One executor run for all who ask the same sub-query; where decoding is random, with a
    temperature and without a seed, none is shared.
    """

    enabled: bool = True
    keep_s: Pause = 300.0
    """Time for which a finished report is given to others; until the index is swapped, at most."""


class EngineConfig(Section, frozen=True):
    """A vLLM process that the gateway starts and stops."""

    path: ModelPath
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's API server. Where it computes on a processor without bf16, fp32
    is the default, which is faster there; `["--dtype", "bfloat16"]` takes half the memory.
    """
    adapter_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = None
    """Max rank of LoRA adapters that can be loaded in addition to the model; absent: none can be.
    """
    ready_within_s: Annotated[float, Meta(ge=1, le=86_400)] = 600.0
    """Time for loading, each time it is started. Large models take minutes."""
    health_timeout_s: Annotated[float, Meta(ge=1, le=86_400)] = 10.0
    """Time for its health check. An engine that misses three in a row is started again; where
    others take all cores, a busy one may need longer.
    """


class RoleConfig(Section, frozen=True):
    """One role. Its model is on an `engine` of ours, at a `base_url`, or, with neither,
    wherever LiteLLM finds it.
    """

    model: ModelName
    """The name under which the endpoint serves it."""
    prompt: File
    """The file that holds the system prompt."""
    engine: str | None = None
    """A name of the table `engines`."""
    base_url: URL | None = None
    """An OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."""
    api_key_env: Variable | None = None
    """The environment variable that holds the key."""
    max_tokens: Tokens = 1024
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: int | None = None
    thinking: bool | None = None
    """Switches a chat template's thinking on or off; absent leaves it to the template."""
    extra_body: dict[str, Any] = {}
    """Further fields of every request, as they are, such as `reasoning_effort = "low"`."""
    omit: tuple[Omitted, ...] = ()
    """Parameters that are left out of requests because the endpoint refuses them, such as
    `["stop"]`; stop strings then end an output here.
    """
    system_role: bool = True
    """False for models that know no system role: the system prompt then opens the first user
    turn.
    """
    context_tokens: Count | None = None
    """Tokens that the model reads and writes at most; without it, an endpoint's refusal tells that
    a prompt is too long.
    """
    attempts: Count = 3
    """Tries of a call while its endpoint is unavailable."""
    replicas: tuple[URL, ...] = ()
    """Base URLs of further endpoints that serve the same model, and take the same key."""
    first_token_timeout_s: Seconds = 60.0
    """Time until the first token of an attempt; a reply that is not streamed, such as LiteLLM's,
    must be complete by then.
    """
    call_timeout_s: Seconds = 300.0
    """Time of an attempt, from its start to its last token."""
    max_in_flight: Count | None = None
    """Calls of this role at a time, over all replicas; further ones wait. Absent: any number."""
    fallbacks: tuple[Literal["delegation", "execution", "answer"], ...] = ()
    """Fallback roles, tried in order if this role's model is unavailable; the prompt stays this
    role's.
    """
    structured: bool = True
    """Constrain the execution role's turns by vLLM's structured outputs, if the endpoint has them
    and `thinking` is not true. False for a model that thinks in its text.
    """
    tool_calls: bool = False
    """Its model calls tools in the way of OpenAI's API, which its endpoint reads (vLLM:
    `--enable-auto-tool-choice` and a `--tool-call-parser`). False: in tags, which any model can
    write.
    """


class TableRoleConfig(Section, frozen=True):
    """A role in the work on tables; all else is as in that role."""

    prompt: File | None = None
    """The file that holds the system prompt; absent for the shipped one."""
    max_tokens: Tokens | None = None
    """Max tokens of an output, a whole table if the role writes it; absent: the role's."""


class RolesConfig(Section, frozen=True):
    """The three roles."""

    delegation: RoleConfig
    execution: RoleConfig
    answer: RoleConfig
    table_delegation: TableRoleConfig = TableRoleConfig()
    table_execution: TableRoleConfig = TableRoleConfig()

    @property
    def by_name(self) -> dict[RoleName, RoleConfig]:
        """All of them, in the order of their work."""
        return {"delegation": self.delegation, "execution": self.execution, "answer": self.answer}


class EmbedderConfig(Section, frozen=True):
    """The model that turns text into vectors: MiniLM in process, or that of an endpoint or an
    engine of ours.
    """

    engine: str | None = None
    """A name of the table `engines`."""
    base_url: URL | None = None
    """Without this and `engine`, MiniLM is the embedder."""
    model: ModelName | None = None
    dimension: Count | None = None
    api_key_env: Variable | None = None
    query_prefix: str = ""
    """Put before every query, as Qwen3-Embedding and E5 want it."""
    passage_prefix: str = ""

    @property
    def in_process(self) -> bool:
        """True for MiniLM in this process."""
        return self.engine is None and self.base_url is None


class RetrievalConfig(Section, frozen=True):
    """Source of passages: an index in process, or a retrieval server by address."""

    address: Address | None = None
    """Address of a RetrievalService."""
    timeout_s: Seconds = 30.0
    """Time of a search there, including the connection."""
    index: AnyPath | None = None
    """An index folder."""
    documents: tuple[Source, ...] = ()
    """Files and folders that the index is made of; it is brought up to date at the start and by
    `index build`.
    """
    chunk_tokens: Annotated[int, Meta(ge=32, le=8192)] = 200
    """Tokens of a passage, by the embedder's count; documents are cut at sentence ends."""
    lexical: bool = False
    """Fuse lexical ranks in; the index must have been built with them."""
    embedder: EmbedderConfig = EmbedderConfig()


class GateConfig(Section, frozen=True):
    """Automatic promotion and rollback of a version that is tried."""

    enabled: bool = True
    margin: Share = 0.1
    """The most that it may be worse than the active one: of the runs that only one of the two has
    right, those that it has wrong less those that it has right, as a share of them. With 0.1, that
    is about 4, 5 and 3 points of accuracy where 30, 50 and 80 % of answers are right.
    """
    min_right: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """The share of its answers that have to be right, of those that are judged and of held-out
    questions.
    """
    canary_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """The share of runs that a shadow which passes goes on to work for."""
    max_tokens_ratio: Annotated[float, Meta(gt=0, le=1000)] = 2.0
    """Its executor tokens as a multiple of the active one's, at most."""


class VersionsConfig(Section, frozen=True):
    """Versions of the executor: adapters that are loaded into the model of `roles.execution`."""

    folder: AnyPath = "~/.cache/rolegate/versions"
    """The folder in which versions are published."""
    start: Version | None = None
    """The folder of the version that is active until another one is promoted; absent for the
    model itself.
    """
    held_out: File | None = None
    """Lines of JSON with `question` and `golden_answers`, which a canary has to pass before the
    gate promotes it: both versions are asked all of them, at the cost of the tenant `default`.
    Absent: only operators promote.
    """
    gate: GateConfig = GateConfig()


class TelemetryConfig(Section, frozen=True):
    """Log, metrics and traces."""

    log_format: Literal["text", "json"] = "text"
    """Form of the log of `rolegate serve`: lines to read, or a JSON object a line."""

    metrics: Address | None = None
    """The address at which Prometheus may ask for `/metrics`, without a key. Absent: nowhere."""
    otlp: URL | None = None
    """The receiver of traces, by OTLP over gRPC, such as http://127.0.0.1:4317. Absent: nowhere."""
    contents: bool = False
    """Traces hold questions, sub-queries and answers; never those of tenants that keep
    no texts.
    """


class DistillationConfig(Section, frozen=True):
    """Models that teach executors and judge answers."""

    teacher: RoleConfig | None = None
    """Asked by `rolegate sft` only."""
    judge: RoleConfig | None = None
    """Asked by `rolegate sft`, and, by a gateway, about answers of a version that is tried."""


class ToolServerConfig(Section, frozen=True):
    """An MCP server whose tools workers may call: a program that the gateway keeps running, or
    an address.
    """

    command: tuple[str, ...] = ()
    """A program with its arguments, which speaks over its standard streams. Of the gateway's
    environment it has PATH, HOME, LANG and `env`.
    """
    env: tuple[Variable, ...] = ()
    """Environment variables that the program gets."""
    url: URL | None = None
    """An address of streamable HTTP, such as http://127.0.0.1:8000/mcp."""
    headers: dict[str, Variable] = {}
    """HTTP headers, each with the environment variable that holds its value, as in
    `{Authorization = "WEB_KEY"}`.
    """
    allow: tuple[str, ...] = ()
    """Names of the tools that may be called; `rolegate check --live` tells which there are."""
    timeout_s: Seconds = 60.0
    """Time of a call, and of a start."""
    max_in_flight: Count = 4
    """Calls at a time, over all runs; further ones wait."""
    max_chars: Chars = 50_000
    """Max characters of an output; the rest is cut off. A call with a much longer output fails."""


class ManagerConfig(Section, frozen=True):
    """A manager, who stands between the delegator and executors in the topology `host`, and in
    tables: it splits a step, lets workers look, checks what comes back, and reports.
    """

    about: str
    """Its use, in a line that the delegator reads."""
    prompt: File | None = None
    """The file that holds its system prompt; absent for the shipped one, or that of `role`."""
    tools: tuple[str, ...] = ()
    """Names of the table `tools`, whose tools its workers call instead of searching; absent for
    the run's executors.
    """
    role: RoleConfig | None = None
    """Its model; absent for the delegator's, with its sampling."""
    max_workers: Count = 8
    """Workers at a time."""
    max_rounds: Count = 2
    """Turns in which it may dispatch workers."""


class Config(Section, frozen=True):
    """Everything."""

    roles: RolesConfig
    retrieval: RetrievalConfig
    server: ServerConfig = ServerConfig()
    search: SearchConfig = SearchConfig()
    table: TableLimits = TableLimits()
    admission: AdmissionLimits = AdmissionLimits()
    report_cache: ReportCacheConfig = ReportCacheConfig()
    engines: dict[str, EngineConfig] = {}
    versions: VersionsConfig = VersionsConfig()
    distillation: DistillationConfig = DistillationConfig()
    tools: dict[str, ToolServerConfig] = {}
    telemetry: TelemetryConfig = TelemetryConfig()
    managers: dict[str, ManagerConfig] = {}
    """By name; what names none goes to the first."""
    prices: dict[str, Price] = {}
    """By model. A model that is not in it is looked up in LiteLLM's table, where that is
    installed.
    """

    @property
    def called_roles(self) -> dict[str, RoleConfig]:
        """All that a gateway calls, by their keys."""
        roles = {f"roles.{name}": role for name, role in self.roles.by_name.items()}
        return roles | {
            f"managers.{name}.role": one.role for name, one in self.managers.items() if one.role
        }


Visit = Callable[[str, str, str], str]
"""Gets a text's key, what it is marked as, and itself; returns what takes its place."""


def visit_texts(config: Config, visit: Visit) -> Config:
    """The config with what `visit` makes of each text that its type marks."""
    visited: Config = _visited(config, type_info(Config), "", visit)
    return visited


def _visited(
    value: Any,
    kind: Type,
    key: str,
    visit: Visit,
) -> Any:
    if isinstance(kind, UnionType):
        return None if value is None else _visited(value, kind.types[0], key, visit)
    match kind:
        case Metadata(extra={"mark": mark}):
            return visit(key, mark, value)
        case VarTupleType(item_type=item):
            return tuple(_visited(each, item, key, visit) for each in value)
        case DictType(value_type=inner):
            return {
                name: _visited(each, inner, f"{key}.{name}", visit) for name, each in value.items()
            }
        case StructType(fields=fields):
            within = f"{key}." if key else ""
            each = {
                field.name: _visited(
                    getattr(value, field.name), field.type, within + field.name, visit
                )
                for field in fields
            }
            return msgspec.structs.replace(value, **each)
    return value
