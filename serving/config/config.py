"""The configuration: frozen values that refuse unknown keys.

Paths are relative to the file that they stand in, or, in a shipped preset, to the working directory. `~` is the home
folder, and `shipped:` what comes with the package, as in `shipped:prompts/full/delegation.txt`.
"""

from typing import Any, Literal

import msgspec

from router.trace.call import Price, RoleName


class TLSConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Certificates in PEM files."""

    certificate: str
    """The server's, with its chain."""
    key: str
    client_ca: str | None = None
    """Who signs clients' certificates; with it, clients without one are turned away."""


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gRPC edge and the store."""

    address: str = "127.0.0.1:50551"
    """host:port; port 0 takes any free one."""
    http: str | None = None
    """host:port of the OpenAI-compatible door; absent keeps it shut."""
    http_hosts: tuple[str, ...] = ()
    """Names by which the door and the metrics may be asked for, such as gateway.example, where a proxy or a client does
    not use an IP address, localhost or the host of their own addresses. Other names are refused."""
    store: str = "sqlite:///rolegate.db"
    """A database URL: sqlite:///FILE, where a relative path stands beside the config file, or postgresql://…"""
    timeout_s: float = 120.0
    """The longest a request may take, whatever the client's deadline."""
    grace_s: float = 30.0
    """How long running requests may take to finish after SIGTERM."""
    max_question_chars: int = 4000
    tls: TLSConfig | None = None
    keep_days: float | None = None
    """Runs that started longer ago are deleted, with their calls and traces; sums of what was spent stay."""


class SearchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The search loop's budgets."""

    max_rounds: int = 4
    """Delegator decisions (T)."""
    max_sub_queries: int = 8
    """Sub-queries of one block that are dispatched."""
    max_turns: int = 3
    """Executor turns, the report included (K)."""
    max_searches: int = 2
    """Searches of one executor."""
    top_k: int = 3
    """Passages shown for each search."""
    max_passage_chars: int = 8000
    """Of a passage that is shown; what is longer is cut."""
    max_report_chars: int = 2000
    """Of a report's answer, and of each point of its evidence; what is longer is cut."""
    early_dispatch: bool = True
    """Begin with a sub-query once the delegator has written it, not when its whole block is written."""
    require_evidence: bool = True
    """Without any evidence, say "not found" instead of letting the answerer guess."""
    scope: str | None = None
    """A text file of the only words and names that a question may use; for models of one small language."""


class AdmissionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many runs a gateway process works on at a time; beyond that, and a short queue, requests are turned away."""

    max_runs: int = 4000
    max_runs_per_tenant: int | None = None
    """Absent: as many as there may be."""
    queue: int = 400
    """Runs that may wait for others to end; tenants take turns."""
    queue_s: float = 5.0
    """How long one waits at most, and when those that are turned away are told to come back."""


class ReuseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One executor run for all who ask the same sub-query; where decoding is random, with a temperature and without a
    seed, none is shared.
    """

    enabled: bool = True
    keep_s: float = 300.0
    """How long a finished report is given to others; until the index is swapped, at most."""
    most: int = 10_000
    """Finished reports that are kept."""
    across_tenants: bool = False
    """Whether tenants share with each other; those that keep no texts never do, those that train nobody only within."""


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A vLLM process that the gateway starts and stops."""

    path: str
    """The model's folder, or a name that vLLM knows."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's API server. Where it computes on a processor without bf16, fp32 is the default, which
    is faster there; `["--dtype", "bfloat16"]` takes half the memory."""
    adapter_rank: int | None = None
    """The largest rank of LoRA adapters that can be loaded beside the model; absent where none can."""
    ready_within_s: float = 600.0
    """How long loading may take, each time it is started. Large models take minutes."""
    health_timeout_s: float = 10.0
    """How long its health check may take. An engine that misses three in a row is started again; where others take all
    cores, a busy one may need longer."""


class RoleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One role. Its model is on an `engine` of ours, at a `base_url`, or, with neither, wherever LiteLLM finds it."""

    model: str
    """The name under which the endpoint serves it."""
    prompt: str
    """The file that holds the system prompt."""
    engine: str | None = None
    """A name of the table `engines`."""
    base_url: str | None = None
    """An OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."""
    api_key_env: str | None = None
    """The environment variable that holds the key."""
    max_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    thinking: bool | None = None
    """Switches a chat template's thinking on or off; absent leaves it to the template."""
    extra_body: dict[str, Any] = {}
    """Further fields of every request, as they are, such as `reasoning_effort = "low"`."""
    system_role: bool = True
    """False for models that know no system role: the system prompt then opens the first user turn."""
    context_tokens: int | None = None
    """What the model reads and writes at most; without it, an endpoint's refusal tells that a prompt is too long."""
    attempts: int = 3
    """How often a call is tried while its endpoint is unavailable."""
    replicas: tuple[str, ...] = ()
    """Base URLs of further endpoints that serve the same model, and take the same key."""
    connect_timeout_s: float = 5.0
    first_token_timeout_s: float = 60.0
    """Of an attempt; a reply that is not streamed, as LiteLLM's are not, has to be there whole by then."""
    call_timeout_s: float = 300.0
    """Of an attempt, from its start to its last token."""
    max_in_flight: int | None = None
    """Calls of this role at a time, over all replicas; further ones wait. Absent: any number."""
    hedge_percentile: float | None = None
    """A call that takes longer than this percentage of the last ones is made a second time, at another replica where
    there is one; the first to end counts, and both are paid for. Absent: never."""
    fallbacks: tuple[Literal["delegation", "execution", "answer"], ...] = ()
    """Roles whose models are asked, in this order, where this one's is not to be had; the prompt stays this role's."""
    structured: bool = True
    """Of the execution role: its turns are held to their form by vLLM's structured outputs, where the endpoint has them
    and the model does not think in its text."""


class RolesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The three roles."""

    delegation: RoleConfig
    execution: RoleConfig
    answer: RoleConfig

    @property
    def by_name(self) -> dict[RoleName, RoleConfig]:
        """All of them, in the order of their work."""
        return {"delegation": self.delegation, "execution": self.execution, "answer": self.answer}


class EmbedderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What turns text into vectors: MiniLM in process, or an OpenAI-compatible endpoint, or an engine of ours."""

    kind: Literal["minilm", "endpoint"] = "minilm"
    engine: str | None = None
    """A name of the table `engines`."""
    base_url: str | None = None
    model: str | None = None
    dimension: int | None = None
    api_key_env: str | None = None
    query_prefix: str = ""
    """Put before every query, as Qwen3-Embedding and E5 want it."""
    passage_prefix: str = ""


class BatchingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How queries of all callers are searched together; for an index in process."""

    wait_ms: float = 2.0
    """How long, after a batch of several callers, their next queries are waited for; who asks alone never waits."""
    most: int = 64
    """Queries of a batch."""
    cache: int = 10_000
    """Queries whose passages are kept until the index is swapped."""


class RetrievalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where passages come from: an index in process, or a retrieval server by address."""

    address: str | None = None
    """host:port of a RetrievalService."""
    timeout_s: float = 30.0
    """Of a search there, connecting included."""
    index: str | None = None
    """An index folder."""
    documents: tuple[str, ...] = ()
    """Files and folders that the index is made of; it is brought up to date at the start and by `index build`."""
    chunk_tokens: int = 200
    """Tokens of a passage, by the embedder's count; documents are cut at sentence ends."""
    lexical: bool = False
    """Fuse lexical ranks in; the index must have been built with them."""
    embedder: EmbedderConfig = EmbedderConfig()
    batching: BatchingConfig = BatchingConfig()


class GateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a version that is tried is taken further, or out of service, without anybody's doing."""

    enabled: bool = True
    margin: float = 0.05
    """How much worse it may be than the active one, as a share of runs: in right answers, and in failures."""
    error: float = 0.05
    """In each stage, the probability of promoting a version that is worse by more than the margin, and of rolling back
    one that is not worse, however often one looks.
    """
    canary_share: float = 0.2
    """The share of runs that a shadow which passes goes on to work for."""
    most_tokens: float = 2.0
    """Its executor tokens as a multiple of the active one's, at most."""
    most_trials: int = 10_000
    """Of a stage; without a decision by then, as where no feedback comes, the trial is over."""


class VersionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Versions of the executor: adapters that are loaded beside the model of `roles.execution`."""

    folder: str = "~/.cache/rolegate/versions"
    """Where versions are published."""
    start: str | None = None
    """The folder of the version that is active until another one is promoted; absent for the model itself."""
    gate: GateConfig = GateConfig()


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What others may watch."""

    metrics: str | None = None
    """host:port at which Prometheus may ask for `/metrics`, without a key. Absent: nowhere."""
    otlp: str | None = None
    """Where traces go, by OTLP over gRPC, such as http://127.0.0.1:4317. Absent: nowhere."""
    contents: bool = False
    """Whether traces hold questions, sub-queries, queries and answers; never those of tenants that keep no texts."""


class DistillationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who teaches executors, and who judges answers; asked by `rolegate sft` only."""

    teacher: RoleConfig | None = None
    judge: RoleConfig | None = None


class MainAgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A main agent that works alone: the model of `roles.delegation`, with its sampling."""

    prompt: str | None = None
    """The file that holds the system prompt; absent for the shipped one."""
    max_tokens: int | None = None
    """Of a turn; absent for as much as the delegator or the answerer may write."""


class TopologiesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Baselines that a request may choose instead of the three roles; for comparisons."""

    single_agent: MainAgentConfig = MainAgentConfig()
    """It searches and answers by itself."""
    no_retrieval: MainAgentConfig = MainAgentConfig()
    """It answers from what it knows."""
    searcher: RoleConfig | None = None
    """A Search-R1 model in the executor's place, on an engine or at an address of vLLM's. Its `prompt`, such as
    `shipped:prompts/full/searcher.txt`, begins the user's turn; its chat template must leave `<think>` where it is."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything."""

    roles: RolesConfig
    retrieval: RetrievalConfig
    server: ServerConfig = ServerConfig()
    search: SearchConfig = SearchConfig()
    admission: AdmissionConfig = AdmissionConfig()
    reuse: ReuseConfig = ReuseConfig()
    engines: dict[str, EngineConfig] = {}
    versions: VersionsConfig = VersionsConfig()
    distillation: DistillationConfig = DistillationConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    topologies: TopologiesConfig = TopologiesConfig()
    prices: dict[str, Price] = {}
    """By model. A model that is not in it is looked up in LiteLLM's table, where that is installed."""
