"""The configuration as frozen structs. Reading a file into them fails for an unknown key, and for a
value that is out of range.

A relative path is relative to the folder of the configuration file. In a shipped preset, it is
relative to the working directory. `~` is the home folder. The prefix `shipped:`, as in
`shipped:prompts/full/delegation.txt`, is replaced by the folder of the package `serving`.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.inspect import DictType, Metadata, StructType, Type, UnionType, VarTupleType, type_info

from router.edge.http.chat_tasks import ChatTasks
from router.edge.listening import TLS
from router.frozen import Frozen
from router.protocol.style import DEFAULT_STYLE, AnswerStyle
from router.runs.admission import AdmissionLimits
from router.table import TableLimits
from router.trace import Price, RoleName
from router.trace.scope import DEFAULT_INDEX


def _marked(mark: str) -> Meta:
    return Meta(extra={"mark": mark})


# Types of texts in the file. Each type has a mark, such as "path". `visit_texts` calls a function
# with each text and its mark. `file.py` uses `visit_texts` to make paths absolute, and `check.py`
# uses it to check the texts.
AnyPath = Annotated[str, _marked("path")]
File = Annotated[str, _marked("file")]
"""An existing file."""
Source = Annotated[str, _marked("source")]
"""An existing file or folder."""
Version = Annotated[str, _marked("version")]
"""The folder of a published version of the executor."""
ModelPath = Annotated[str, _marked("model")]
"""The folder of a model, or the name of a model that vLLM can load, such as Qwen/Qwen3-1.7B."""
Store = Annotated[str, _marked("store")]
"""A database URL. A path of a SQLite file in the URL is made absolute."""
Address = Annotated[str, _marked("address")]
"""host:port; with port 0, any free port is used."""
Host = Annotated[str, _marked("host")]
URL = Annotated[str, _marked("url")]
Variable = Annotated[str, _marked("variable")]
"""The name of an environment variable."""
ModelName = Annotated[str, _marked("name")]
Factory = Annotated[str, _marked("factory")]

Identifier = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Chars = Count
Tokens = Annotated[int, Meta(ge=1, le=10**7)]
"""A number of tokens of a prompt or an output."""
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Pause = Annotated[float, Meta(ge=0, le=86_400)]
"""A time in seconds; 0 is allowed."""
Share = Annotated[float, Meta(gt=0, lt=1)]
Positive = Annotated[float, Meta(gt=0, le=10**6)]
Passages = Annotated[int, Meta(ge=1, le=100)]
"""A number of passages."""
PassageTokens = Annotated[int, Meta(ge=32, le=8192)]
"""Max tokens of a passage of an index."""
EngineSeconds = Annotated[float, Meta(ge=1, le=86_400)]
"""A time limit of an engine, in seconds."""

FACTORY = re.compile(
    r"HNSW([1-9]\d?),SQ8|IVF([1-9]\d{0,6})(?:_HNSW[1-9]\d?)?,(?:SQ8|PQ([1-9]\d{0,3}))"
)
"""Index factory strings of FAISS that the key `vectors` accepts in addition to `Flat`. The groups
are: 1. links per vector (HNSW), 2. number of lists (IVF), 3. bytes per vector (PQ).
"""


Omitted = Literal[
    "temperature",
    "top_p",
    "seed",
    "stop",
    "stream_options",
    "chat_template_kwargs",
]
"""Request parameter that some endpoints refuse. The key `omit` of a role lists the parameters that
are not sent.
"""


class Section(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Base class of the tables of the configuration file."""


class ServerConfig(Section):
    """Where the gateway listens, and where it stores its data."""

    address: Address = "127.0.0.1:50551"
    """Address of the gRPC server; with port 0, any free port is used."""
    http: Address | None = None
    """Address of the OpenAI-compatible server and of the web pages. Absent: neither is served."""
    http_hosts: tuple[Host, ...] = ()
    """Host names, such as gateway.example, that clients may use to reach the HTTP server and the
    metrics. IP addresses, localhost and the host in `http` are always allowed. Requests to other
    host names are refused.
    """
    chat_tasks: ChatTasks = "answer"
    """How the OpenAI-compatible server handles requests for a title, for tags or for follow-up
    questions. Chat tools such as Open WebUI send such requests without an action of the user.
    `answer`: the answerer writes the text without a search. `refuse`: the request fails, which
    costs nothing. `search`: the request is answered by a search, like any question.
    """
    http_connections_per_address: Annotated[int, Meta(ge=1, le=4096)] = 1024
    """Max HTTP connections from one client address; further connections get status 429. The server
    accepts 4096 connections in all. Behind a reverse proxy, all clients have the proxy's address:
    set 4096 here, and limit the connections of each client in the proxy.
    """
    store: Store = "sqlite:///rolegate.db"
    """URL of the database for runs, API keys and tenants: sqlite:///FILE, or
    postgresql://USER:PASSWORD@HOST/DATABASE. Several gateways may share a PostgreSQL database; a
    SQLite file belongs to one gateway.
    """
    log: AnyPath | None = None
    """Folder of the write-ahead log. Runs are written to the log first, and soon after to the
    database. With PostgreSQL, each gateway writes to its own subfolder, and reads that subfolder
    when the gateway restarts. Absent: next to the SQLite file, or in ~/.cache/rolegate/logs for
    PostgreSQL.
    """
    timeout_s: Seconds = 120.0
    """Max duration of a request in seconds, even if the client's deadline is later."""
    drain_s: Pause = 0.0
    """Seconds after SIGTERM in which the gateway reports that it is not ready, but still accepts
    requests. Proxies can then switch to other gateways without losing a request.
    """
    grace_s: Pause = 30.0
    """Max seconds for running requests to finish, counted from the end of the `drain_s` seconds.
    Requests that take longer are interrupted.
    """
    max_question_chars: Chars = 4000
    """Max characters of a question; longer questions are refused."""
    tls: TLS | None = None
    keep_days: Positive | None = None
    """Age in days at which a run is deleted, with its calls and trace. The sums of tokens and cost
    are kept. Absent: runs are never deleted.
    """


class SearchConfig(Section):
    """Limits and options of the search for an answer. In each round, the delegator decides on
    sub-queries. Then one executor works on each sub-query: it searches, and writes a report.
    """

    max_rounds: Count = 4
    """Max rounds for one question; T in the TBSS paper."""
    max_sub_queries: Count = 8
    """Max sub-queries of one round; further sub-queries of the delegator are ignored."""
    max_turns: Annotated[int, Meta(ge=2, le=10**9)] = 3
    """Max turns (outputs of the model) of an executor for one sub-query, including its report; K in
    the TBSS paper.
    """
    max_searches: Count = 2
    """Max searches of an executor for one sub-query."""
    top_k: Passages = 3
    """Number of passages that a search shows to its executor."""
    access: bool = False
    """Allow executors to open a document that one of their searches has found: they name a subject,
    and get the passages of the document about it. A small model that was trained without this
    option ignores the instructions for opening documents.
    """
    access_k: Passages = 10
    """Max number of passages of an opened document to show to the executor."""
    access_chars: Chars = 25_000
    """Max characters of an opened document, or of the output of a tool, to show to the executor."""
    early_dispatch: bool = True
    """Start the executor of a sub-query as soon as the delegator has written this sub-query. False:
    wait until the delegator has written all sub-queries of the round.
    """
    require_evidence: bool = True
    """If no executor has found any evidence, return "not found" instead of letting the answerer
    guess.
    """
    vocabulary: File | None = None
    """Text file with all words and names that a question may contain. Questions with other words
    are refused. This is meant for models that know only a small language, such as the demo's
    models. Absent: all words are allowed.
    """


class ReportCacheConfig(Section):
    """Reuse of reports: runs with the same sub-query share one executor's report, while it is being
    made, and for `keep_s` seconds afterwards. Reports are not reused if the executor samples at
    random, that is, with a temperature above 0 and no seed.
    """

    enabled: bool = True
    """Whether reports are reused in other runs."""
    keep_s: Pause = 300.0
    """Seconds after which a finished report is no longer reused. After a change of the index, older
    reports are not reused either.
    """


class EngineConfig(Section):
    """A vLLM server process that the gateway starts and stops. Roles and the embedder select the
    engine of the table `[engines.NAME]` with `engine = "NAME"`.
    """

    path: ModelPath
    """Folder of the model, or the name of a model that vLLM can load, such as Qwen/Qwen3-1.7B."""
    arguments: tuple[str, ...] = ()
    """Further command-line arguments of vLLM's API server. On a CPU without bf16 instructions, the
    gateway adds `--dtype float32`, which is faster on such a CPU. Set `["--dtype", "bfloat16"]` to
    use half the memory instead.
    """
    adapter_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = None
    """Max rank of a LoRA adapter that the engine can load. Absent: the engine loads no adapters."""
    ready_within_s: EngineSeconds = 600.0
    """Max seconds from a start of the engine until it is ready. Large models take minutes."""
    health_timeout_s: EngineSeconds = 10.0
    """Timeout of the engine's health check, in seconds. After three failed checks in a row, the
    engine is restarted. If other processes use all cores, a busy engine may need a longer timeout.
    """


class RoleConfig(Section):
    """One role: its model, its prompt and its limits. With `engine`, the model runs on a vLLM
    engine that the gateway starts. With `base_url`, the model is called at an OpenAI-compatible
    endpoint. With neither key, it is called through LiteLLM, which finds the provider by the
    model's name.
    """

    model: ModelName
    """Name of the model at its endpoint, or in LiteLLM."""
    prompt: File
    """File with the system prompt."""
    engine: str | None = None
    """Engine that serves the model: NAME of a table `[engines.NAME]`."""
    base_url: URL | None = None
    """URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."""
    api_key_env: Variable | None = None
    """Name of the environment variable with the API key. Absent: requests have no key."""
    max_tokens: Tokens = 1024
    """Max tokens of one output, including the model's thinking."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Sampling temperature."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling: sample from the most likely tokens whose probabilities sum to this value.
    """
    seed: int | None = None
    """Seed of the sampling. Absent: requests have no seed."""
    thinking: bool | None = None
    """Whether the model thinks before it writes: sent to the chat template as `enable_thinking`.
    Absent: the template decides.
    """
    extra_body: dict[str, Any] = {}
    """Further fields of the body of every request, sent unchanged, such as
    `{reasoning_effort = "low"}`.
    """
    omit: tuple[Omitted, ...] = ()
    """Parameters that are not sent because the endpoint refuses them, such as `["stop"]`. If `stop`
    is not sent, the gateway itself ends an output at a stop string.
    """
    system_role: bool = True
    """False for a model without a system role: the system prompt is then put at the beginning of
    the first user message.
    """
    context_tokens: Count | None = None
    """Context length of the model: max tokens of prompt and output together. Absent: unknown; a
    prompt that is too long is sent, and the endpoint refuses it.
    """
    attempts: Count = 3
    """Max attempts of a model call, over all `replicas` together. If all attempts fail, the call
    fails.
    """
    replicas: tuple[URL, ...] = ()
    """Base URLs of further endpoints with the same model and the same API key, for load balancing
    and failover.
    """
    first_token_timeout_s: Seconds = 60.0
    """Max seconds from the start of an attempt to its first token. A reply that is not streamed,
    such as a reply through LiteLLM, must be complete within this time.
    """
    call_timeout_s: Seconds = 300.0
    """Max seconds from the start of an attempt to its last token."""
    max_in_flight: Count | None = None
    """Max concurrent calls of this role, over all replicas; further calls wait. Absent: no limit.
    """
    fallbacks: tuple[Literal["delegation", "execution", "answer"], ...] = ()
    """Roles whose models are tried, in this order, if this role's model is unavailable. These
    models are called with the prompt of this role.
    """
    structured: bool = True
    """Constrain the outputs of the executor to the format that the gateway expects, with vLLM's
    structured outputs. The key has no effect in other roles, at an endpoint without structured
    outputs, or with `thinking = true`. Set false for a model that writes its thinking into its
    text.
    """
    tool_calls: bool = False
    """True: the model calls tools with the tool calls of OpenAI's API, which the endpoint must
    support (vLLM: `--enable-auto-tool-choice` and a `--tool-call-parser`). False: the model writes
    tool calls as tags in its text, which works with any endpoint.
    """


class TableRoleConfig(Section):
    """Settings of the delegation or execution role for work on tables. All other settings are taken
    from `[roles.delegation]` or `[roles.execution]`.
    """

    prompt: File | None = None
    """File with the system prompt for tables. Absent: the shipped prompt."""
    max_tokens: Tokens | None = None
    """Max tokens of an output, which may contain many rows. Absent: the role's `max_tokens`."""


class RolesConfig(Section):
    """The three roles, and settings of two of these roles for tables. The delegator (`delegation`)
    splits a question into sub-queries, an executor (`execution`) searches for each, and the
    answerer (`answer`) writes the answer from the reports of the executors.
    """

    delegation: RoleConfig
    execution: RoleConfig
    answer: RoleConfig
    table_delegation: TableRoleConfig = TableRoleConfig()
    table_execution: TableRoleConfig = TableRoleConfig()

    @property
    def by_name(self) -> dict[RoleName, RoleConfig]:
        """The three roles by name, in the order in which they work on a question."""
        return {"delegation": self.delegation, "execution": self.execution, "answer": self.answer}


class EmbedderConfig(Section):
    """The model that embeds queries and passages. With `engine` or `base_url`, a server runs it.
    With `onnx`, it runs in the gateway's process. Without any of these keys, it is the packaged
    MiniLM, which also runs in the gateway's process.
    """

    onnx: AnyPath | None = None
    """Folder of an ONNX export of a sentence encoder: `model.onnx` and `tokenizer.json`. It needs
    the extra `onnx`, but no torch (docs/documents.md#an-embedder-without-torch).
    """
    engine: str | None = None
    """Engine that serves the model: NAME of a table `[engines.NAME]`."""
    base_url: URL | None = None
    """URL of an OpenAI-compatible endpoint for embeddings, such as http://127.0.0.1:8000/v1."""
    model: ModelName | None = None
    """Name of the model at its endpoint; required with `engine` or `base_url`."""
    dimension: Count | None = None
    """Number of components of the model's vectors, such as 1024; required with `engine` or
    `base_url`.
    """
    api_key_env: Variable | None = None
    """Name of the environment variable with the API key. Absent: requests have no key."""
    query_prefix: str = ""
    """Text put before every query, as models such as Qwen3-Embedding and E5 require."""
    passage_prefix: str = ""
    """Text put before every passage, as models such as E5 require."""

    @property
    def in_process(self) -> bool:
        """True if the embedder is the packaged MiniLM."""
        return not (self.engine or self.base_url or self.onnx)


class MilvusConfig(Section):
    """A partition in Milvus that holds the vectors of an index (docs/documents.md#milvus)."""

    address: URL
    """URL of Milvus, such as http://127.0.0.1:19530."""
    partition: Identifier
    """Name of the partition. It must belong to this index alone. A missing partition is created."""
    collection: Identifier = "rolegate"
    """Name of the collection. A missing collection is created. All indexes in a collection must
    have vectors of the same dimension.
    """
    token_env: Variable | None = None
    """Name of the environment variable with the token, or with USER:PASSWORD. Absent: requests have
    no token.
    """
    timeout_s: Seconds = 4.0
    """Timeout of a search, and of connecting to Milvus, in seconds."""


class IndexConfig(Section):
    """An index in addition to the index of `[retrieval]`, with the same embedder. Requests refer to
    the index of the table `[indexes.NAME]` as NAME. `rolegate tenants set --index NAME` allows a
    tenant to search it.
    """

    address: Address | None = None
    """Address of a gRPC server with the RetrievalService, such as `rolegate retrieve serve`."""
    timeout_s: Seconds = 30.0
    """Timeout of a search at `address` in seconds, including the time to connect."""
    index: AnyPath | None = None
    """Folder of the index."""
    documents: tuple[Source, ...] = ()
    """Files and folders from which the index is built. The gateway updates the index when it
    starts, and `rolegate index build` updates it at any time.
    """
    chunk_tokens: PassageTokens = 200
    """Max tokens of a passage, counted with the embedder's tokenizer. Documents are cut into
    passages at the ends of sentences.
    """
    lexical: bool = False
    """Combine the ranks of the vector search with the ranks of a lexical search (BM25). After a
    change of this key, build the index again.
    """
    vectors: Factory = "Flat"
    """Type of the vector index, as an index factory string of FAISS. `Flat` compares a query with
    all vectors. `HNSW32,SQ8`, `IVF4096,SQ8` and `IVF4096,PQ48`, also with other numbers, need less
    memory and find almost the same passages (docs/documents.md#large-indexes).
    """
    memory_gb: Positive = 4.0
    """Max memory in GiB for building an index that is not `Flat`. It must hold the index, and the
    sample of vectors on which FAISS trains the index. A build that needs more fails before it
    embeds the documents.
    """
    milvus: MilvusConfig | None = None
    """Partition in Milvus to which the vectors are copied. Searches then use Milvus, and `vectors`
    is ignored. Absent: the vectors are searched without Milvus.
    """
    breadth: Count | None = None
    """Effort of a search in an index that is not `Flat`. For IVF, it is the number of lists that
    are searched (`nprobe`), and for HNSW the number of candidates (`efSearch`). Absent: twice the
    square root of the number of lists for IVF, 128 for HNSW.
    """


class RetrievalConfig(IndexConfig):
    """The index `default`. Set either `index`, the folder of an index that the gateway opens in its
    own process, or `address`, the address of a retrieval server.
    """

    embedder: EmbedderConfig = EmbedderConfig()


class RerankerConfig(Section):
    """A model that sorts the passages of each search by relevance. It is called over the rerank API
    of Jina, Cohere and vLLM. If a call fails, the passages keep the order of the search. Absent: no
    reranker.
    """

    base_url: URL
    """URL of the endpoint without `/rerank` or `/score`, such as http://127.0.0.1:8000/v1, or
    https://api.cohere.com/v2.
    """
    model: ModelName
    """Name of the model at its endpoint."""
    form: Literal["rerank", "score"] = "rerank"
    """API of the endpoint: `/rerank` of Jina, Cohere and vLLM, or `/score` of vLLM."""
    api_key_env: Variable | None = None
    """Name of the environment variable with the API key. Absent: requests have no key."""
    candidates: Annotated[int, Meta(ge=2, le=100)] = 30
    """Number of passages per search that the reranker scores. The executor is shown the best
    `search.top_k` of them.
    """
    timeout_s: Seconds = 5.0
    """Timeout of a request to the reranker, in seconds."""


class UploadsConfig(Section):
    """Documents that clients upload (docs/documents.md#upload-by-api). Each tenant has a separate
    index, with the embedder, `chunk_tokens` and `lexical` of `[retrieval]`.
    """

    folder: AnyPath | None = None
    """Folder of the documents and their indexes. Several gateways may share the folder. Absent: no
    uploads are accepted.
    """
    max_documents: Count = 1000
    """Max number of documents of a tenant."""
    max_mb: Annotated[int, Meta(ge=1, le=10**9)] = 1000
    """Max size of all documents of a tenant together, in MiB. A single document may have at most
    256 MiB.
    """


class GateConfig(Section):
    """The gate, a statistical test that compares a candidate (a version of the executor on trial)
    with the active version, and then promotes the candidate or rolls it back (docs/gate.md).
    """

    enabled: bool = True
    """False: versions are promoted and rolled back only by operators, with `rolegate versions`."""
    margin: Share = 0.1
    """The gate promotes a candidate only if the active version leads by less than this value. The
    gate counts only the runs that exactly one of the two versions answers correctly. Let A be the
    share of these runs that the active version answers correctly, and C the share that the
    candidate answers correctly. The lead is A − C. With 0.1, accuracy may fall by about 4
    percentage points if 30 % of the answers are right, by 5 points if 50 % are, and by 3 points if
    80 % are.
    """
    min_right: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Min share of right answers of a candidate, from 0 to 1. The candidate must reach it twice: in
    the judged runs of its trial, and for the questions in `versions.held_out`.
    """
    canary_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """Share of the runs that a candidate serves in the second part of its trial, as a canary. In
    the first part, as a shadow, it only repeats finished runs.
    """
    max_tokens_ratio: Annotated[float, Meta(gt=0, le=1000)] = 2.0
    """Max ratio of the tokens that a candidate uses to the tokens that the active version uses. A
    candidate with a higher ratio is not promoted.
    """


class VersionsConfig(Section):
    """Versions of the executor, which are LoRA adapters for the model of `[roles.execution]`."""

    folder: AnyPath = "~/.cache/rolegate/versions"
    """Folder in which versions are published, each in a subfolder."""
    start: Version | None = None
    """Folder of the version that is active until another version is promoted. Absent: the model of
    `[roles.execution]` without an adapter.
    """
    held_out: File | None = None
    """File of held-out questions: a JSON object with `question` and `golden_answers` on each line.
    Before the gate promotes a canary, the active version and the canary answer all these questions,
    and the canary must pass (see `[versions.gate]`). The tenant `default` pays for the answers.
    Absent: the gate promotes no canary, but operators can promote it.
    """
    gate: GateConfig = GateConfig()


class TelemetryConfig(Section):
    """Log, metrics and traces."""

    log_format: Literal["text", "json"] = "text"
    """Format of the log that `rolegate serve` prints: lines of text, or one JSON object per line.
    """

    metrics: Address | None = None
    """Address at which the gateway serves `/metrics` for Prometheus; no key is needed there.
    Absent: metrics are not served.
    """
    otlp: URL | None = None
    """URL of a collector to which traces are sent over OTLP/gRPC, such as http://127.0.0.1:4317.
    Absent: no traces are sent.
    """
    webhook: URL | None = None
    """URL to which a warning is posted when a tenant has spent 80 % of a daily or monthly quota.
    The warning is signed as Standard Webhooks specifies. Absent: warnings are only in the log and
    in the metrics.
    """
    webhook_secret_env: Variable | None = None
    """Name of the environment variable with the secret that signs the warnings. The secret is
    `whsec_` followed by at least 24 bytes in base64.
    """
    contents: bool = False
    """Include the texts of questions, sub-queries and answers in the traces that are sent to
    `otlp`, except for tenants with the setting `redact`.
    """


class DistillationConfig(Section):
    """Models that help to train new versions of the executor, and to try them."""

    teacher: RoleConfig | None = None
    """Model whose runs the executor is trained on. Only `rolegate sft` calls it."""
    judge: RoleConfig | None = None
    """Model that judges whether an answer is right. `rolegate sft` calls it, and a gateway calls it
    for the answers of a version on trial.
    """


class ToolServerConfig(Section):
    """An MCP server. The workers of a manager (its executors) may call its tools (see
    `[managers.NAME]`). With `command`, it is a program that the gateway starts and keeps
    running. With `url`, it is called over HTTP.
    """

    command: tuple[str, ...] = ()
    """Program and arguments of an MCP server on standard input and output. The program gets only
    the environment variables PATH, HOME, LANG and those in `env`.
    """
    env: tuple[Variable, ...] = ()
    """Names of further environment variables that the gateway passes to the program."""
    url: URL | None = None
    """URL of an MCP server with streamable HTTP, such as http://127.0.0.1:8000/mcp."""
    headers: dict[str, Variable] = {}
    """HTTP headers of requests to `url`. Each value is the name of the environment variable with
    the header's value, as in `{Authorization = "WEB_KEY"}`.
    """
    allow: tuple[str, ...] = ()
    """Names of the tools that may be called; other tools of the server are never called. `rolegate
    check --live` lists all tools of the server.
    """
    timeout_s: Seconds = 60.0
    """Timeout of a call, and of the server's start, in seconds."""
    own_sessions: bool = False
    """True: each worker has its own session with the server, from the worker's first call until the
    worker has ended. This is for servers that keep state between calls, such as the open page of a
    browser. False: all workers of all runs share one session.
    """
    max_in_flight: Count = 4
    """Max concurrent calls, over all runs; further calls wait. With `own_sessions`, max concurrent
    sessions: a program runs once per session, and once more to list its tools.
    """
    max_chars: Chars = 50_000
    """Max characters of the output of a tool; a longer output is cut off. A call fails if the
    server's reply has more bytes than 4 times `max_chars` plus 1 MiB.
    """


class ManagerConfig(Section):
    """A manager: a model between the delegator and its executors, in the topology `host` and in
    tables. It gets a sub-query of the delegator, splits it for its workers (the manager's
    executors), checks their reports, and writes one report for the delegator. The delegator refers
    to the manager of the table `[managers.NAME]` as NAME.
    """

    about: str
    """Purpose of the manager, in one line. The delegator reads this line to choose a manager."""
    prompt: File | None = None
    """File with the manager's system prompt. Absent: the prompt of the manager's `role`, or if that
    is absent too, the shipped prompt.
    """
    tools: tuple[str, ...] = ()
    """Tool servers, each the NAME of a table `[tools.NAME]`. The manager's workers call the tools
    of these servers instead of searching. Absent: the workers search, like other executors.
    """
    role: RoleConfig | None = None
    """The manager's model and its settings. Absent: the delegator's model and settings."""
    max_workers: Count = 8
    """Max concurrent workers of the manager."""
    max_rounds: Count = 2
    """Max rounds for one sub-query of the delegator. In each round, the manager gives sub-queries
    to its workers, and gets their reports.
    """


class Config(Section):
    """The whole configuration of a gateway."""

    roles: RolesConfig
    retrieval: RetrievalConfig
    reranker: RerankerConfig | None = None
    indexes: dict[str, IndexConfig] = {}
    uploads: UploadsConfig = UploadsConfig()
    server: ServerConfig = ServerConfig()
    search: SearchConfig = SearchConfig()
    table: TableLimits = TableLimits()
    admission: AdmissionLimits = AdmissionLimits()
    report_cache: ReportCacheConfig = ReportCacheConfig()
    answer: AnswerStyle = DEFAULT_STYLE
    condenser: RoleConfig | None = None
    """The model that rewrites a question of a conversation so that it can be understood without the
    earlier messages. Absent: the delegator's model, with a shipped prompt.
    """
    synthesis: RoleConfig | None = None
    """The model that makes up requests for tables as training data. Only `rolegate sft tables`
    calls it.
    """
    engines: dict[str, EngineConfig] = {}
    versions: VersionsConfig = VersionsConfig()
    distillation: DistillationConfig = DistillationConfig()
    tools: dict[str, ToolServerConfig] = {}
    telemetry: TelemetryConfig = TelemetryConfig()
    managers: dict[str, ManagerConfig] = {}
    """Managers by name. A sub-query for which the delegator names no manager goes to the first
    manager in the file.
    """
    prices: dict[str, Price] = {}
    """Prices by model. A model without an entry is looked up in LiteLLM's table of prices, if
    LiteLLM is installed.
    """

    @property
    def all_indexes(self) -> dict[str, RetrievalConfig]:
        """The index of `[retrieval]` and the further indexes by name, each with its embedder."""
        further = {
            name: RetrievalConfig(**msgspec.structs.asdict(index), embedder=self.retrieval.embedder)
            for name, index in self.indexes.items()
        }
        return {DEFAULT_INDEX: self.retrieval, **further}

    @property
    def called_roles(self) -> dict[str, RoleConfig]:
        """The roles whose models a gateway calls, by their keys in the file: the three roles, the
        condenser, the judge of trials, and the roles of managers.
        """
        roles = {f"roles.{name}": role for name, role in self.roles.by_name.items()}
        if self.condenser:
            roles["condenser"] = self.condenser
        if self.distillation.judge and self.versions.gate.enabled:
            roles["distillation.judge"] = self.distillation.judge
        return roles | {
            f"managers.{name}.role": one.role for name, one in self.managers.items() if one.role
        }


def place_of(index: str) -> str:
    """Return the key of the table that configures the index of this name: `retrieval` or
    `indexes.NAME`.
    """
    return "retrieval" if index == DEFAULT_INDEX else f"indexes.{index}"


Visit = Callable[[str, str, str], str]
"""Function with three arguments: the key of a text in the file, the mark of the text's type, and
the text. It returns the text to use instead.
"""


def visit_texts(config: Config, visit: Visit) -> Config:
    """Return a copy of the config in which each text with a mark is replaced by what `visit`
    returns for it.
    """
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
