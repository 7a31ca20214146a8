"""What no single key of a configuration shows, each with its key and what to do."""

import math
import re
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from router.edge.listening import TLS, host_of, is_address
from router.errors import BadConfig
from router.models.failures import without_userinfo
from router.trace.call import MOST_DOLLARS
from serving.config.config import (
    AdmissionConfig,
    Config,
    EmbedderConfig,
    GateConfig,
    RetrievalConfig,
    ReuseConfig,
    RoleConfig,
    SearchConfig,
    ServerConfig,
    TelemetryConfig,
    TLSConfig,
)
from serving.engines.versions import MANIFEST

_MOST_PASSAGES = 100
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM takes for the largest."""
_MOST_TOKENS = 10**7
"""No model writes as many at once."""
_NO_QUERY = "an address with a query or a fragment cannot be asked; a key goes into api_key_env."
_NOT_EXTRA = {
    "max_tokens": "set the role's max_tokens.",
    "max_completion_tokens": "set the role's max_tokens.",
    "n": "one output is all that is read.",
}
"""Fields of a request that decide how much is written at most."""


def problems(config: Config) -> list[str]:
    """Everything that is wrong, in the order of the sections; nothing where the configuration can be used."""
    return [
        *_server(config.server),
        *_search(config.search),
        *_admission(config.admission),
        *_reuse(config.reuse),
        *(problem for name, role in config.roles.by_name.items() for problem in _role(f"roles.{name}", role, config)),
        *(problem for name, role in _distillation(config) for problem in _role(f"distillation.{name}", role, config)),
        *_topologies(config),
        *_engines(config),
        *_missing_files(config),
        *_versions(config),
        *_gate(config.versions.gate),
        *_retrieval(config.retrieval, config),
        *_prices(config),
        *_telemetry(config.telemetry),
    ]


def _server(server: ServerConfig) -> list[str]:
    found: list[str] = []
    for key, address in (("address", server.address), ("http", server.http)):
        if address is not None and not is_address(address):
            found.append(f"server.{key}: {address!r} is not host:port, with a port of 0 to 65535.")
    found += [
        f"server.http_hosts: {name!r} is no name of a host, such as gateway.example."
        for name in server.http_hosts
        if not host_of(name)
    ]
    if not 0 < server.timeout_s <= 86_400:
        found.append("server.timeout_s: must be more than 0 and at most 86400 seconds.")
    if not 0 <= server.grace_s <= 86_400:
        found.append("server.grace_s: must be 0 to 86400 seconds.")
    if server.max_question_chars < 1:
        found.append("server.max_question_chars: must be at least 1.")
    if server.http is not None and server.http == server.address and not server.address.endswith(":0"):
        found.append("server.http: the same address as server.address, which is gRPC's; take another port.")
    if server.keep_days is not None and not server.keep_days > 0:
        found.append("server.keep_days: must be more than 0; leave it out to keep everything.")
    return [*found, *_store(server.store), *(_tls(server.tls) if server.tls else [])]


def _telemetry(telemetry: TelemetryConfig) -> list[str]:
    found = []
    if telemetry.metrics is not None and not is_address(telemetry.metrics):
        found.append(f"telemetry.metrics: {telemetry.metrics!r} is not host:port, such as 127.0.0.1:9464.")
    if telemetry.otlp is not None and not re.match("https?://.", telemetry.otlp):
        found.append("telemetry.otlp: must begin with http:// or https://, such as http://127.0.0.1:4317.")
    return found


def _store(url: str) -> list[str]:
    """What is wrong with it, without a word of it: there may be a password in it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return ["server.store: is no database URL; in a password, write @ : / # as %40 %3A %2F %23."]
    if parsed.get_backend_name() == "postgresql" or (parsed.get_backend_name() == "sqlite" and parsed.database):
        return []
    return ["server.store: must be sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE."]


def _tls(tls: TLSConfig) -> list[str]:
    try:
        TLS(tls.certificate, tls.key, tls.client_ca).for_http()
    except BadConfig as error:
        return [str(error)]
    return []


def _search(search: SearchConfig) -> list[str]:
    counts = ("max_rounds", "max_sub_queries", "max_searches", "top_k")
    found = [f"search.{field}: must be at least 1." for field in counts if getattr(search, field) < 1]
    if search.max_turns < 2:
        found.append("search.max_turns: must be at least 2, one to search and one to report.")
    found += [
        f"search.{field}: must be at least 100."
        for field in ("max_passage_chars", "max_report_chars")
        if getattr(search, field) < 100
    ]
    if search.top_k > _MOST_PASSAGES:
        found.append(f"search.top_k: must be at most {_MOST_PASSAGES}.")
    return found


def _admission(admission: AdmissionConfig) -> list[str]:
    found = [
        f"admission.{field}: must be at least 1."
        for field in ("max_runs", "max_runs_per_tenant")
        if (most := getattr(admission, field)) is not None and most < 1
    ]
    if admission.queue < 0:
        found.append("admission.queue: must be 0 or more; 0 turns away at once.")
    if not 0 <= admission.queue_s <= 3600:
        found.append("admission.queue_s: must be 0 to 3600 seconds.")
    return found


def _reuse(reuse: ReuseConfig) -> list[str]:
    found = [] if 0 <= reuse.keep_s <= 86_400 else ["reuse.keep_s: must be 0 to 86400 seconds."]
    return found if reuse.most >= 0 else [*found, "reuse.most: must be 0 or more; 0 keeps none."]


def _key_variable(key: str, name: str | None) -> list[str]:
    """Without a word of it: it may be the key itself."""
    if not name or re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        return []
    return [f"{key}.api_key_env: is no name of an environment variable; put the key into one, and name that here."]


def _role(key: str, role: RoleConfig, config: Config) -> list[str]:
    found: list[str] = []
    if not role.model.strip():
        found.append(f"{key}.model: is empty; write the name under which the endpoint serves it.")
    if role.engine is not None and role.engine not in config.engines:
        found.append(f"{key}.engine: no table engines.{role.engine}; add it, or name a base_url instead.")
    if role.engine is not None and role.base_url is not None:
        found.append(f"{key}: both engine and base_url are given; keep one.")
    if role.base_url is not None and not role.base_url.startswith(("http://", "https://")):
        found.append(
            f"{key}.base_url: {without_userinfo(role.base_url)!r} is not an address such as http://127.0.0.1:8000/v1."
        )
    if role.thinking is not None and role.engine is None and role.base_url is None:
        found.append(
            f"{key}.thinking: works with engine or base_url only; say it in the provider's own words in extra_body, "
            'such as extra_body = {reasoning_effort = "low"}.'
        )
    found += [
        f"{key}.extra_body.{field}: would undo what is counted on; " + advice
        for field, advice in _NOT_EXTRA.items()
        if field in role.extra_body
    ]
    found += _key_variable(key, role.api_key_env)
    if role.context_tokens is not None and role.context_tokens <= role.max_tokens:
        found.append(f"{key}.context_tokens: must be more than max_tokens, which are a part of them.")
    if not Path(role.prompt).is_file():
        found.append(f"{key}.prompt: there is no file {role.prompt}.")
    found += [f"{key}.{field}: must be at least 1." for field in ("max_tokens", "attempts") if getattr(role, field) < 1]
    if role.max_tokens > _MOST_TOKENS:
        found.append(f"{key}.max_tokens: must be at most {_MOST_TOKENS:,}.")
    found += _endpoints(key, role)
    if not 0 <= role.temperature <= 2:
        found.append(f"{key}.temperature: must be 0 to 2.")
    if not 0 < role.top_p <= 1:
        found.append(f"{key}.top_p: must be more than 0 and at most 1.")
    return found


def _endpoints(key: str, role: RoleConfig) -> list[str]:
    timeouts = ("connect_timeout_s", "first_token_timeout_s", "call_timeout_s")
    found = [f"{key}.{field}: must be more than 0." for field in timeouts if not getattr(role, field) > 0]
    if role.replicas and role.engine is None and role.base_url is None:
        found.append(f"{key}.replicas: needs engine or base_url; LiteLLM's models have no replicas here.")
    found += [
        f"{key}.replicas: {without_userinfo(url)!r} is not an address such as http://127.0.0.1:8000/v1."
        for url in role.replicas
        if not url.startswith(("http://", "https://"))
    ]
    urls = [url.rstrip("/") for url in (role.base_url, *role.replicas) if url]
    if len(set(urls)) < len(urls):
        found.append(f"{key}.replicas: names an address twice.")
    found += [f"{key}.{field}: {_NO_QUERY}" for field in ("base_url", "replicas") if _has_query(getattr(role, field))]
    if role.max_in_flight is not None and role.max_in_flight < 1:
        found.append(f"{key}.max_in_flight: must be at least 1.")
    if role.hedge_percentile is not None and not 50 <= role.hedge_percentile < 100:
        found.append(f"{key}.hedge_percentile: must be 50 or more and less than 100, such as 95.")
    if key.startswith("roles.") and key.removeprefix("roles.") in role.fallbacks:
        found.append(f"{key}.fallbacks: names the role itself.")
    if role.fallbacks and not key.startswith("roles."):
        found.append(f"{key}.fallbacks: only the roles of the search have any.")
    return found


def _distillation(config: Config) -> list[tuple[str, RoleConfig]]:
    roles = {"teacher": config.distillation.teacher, "judge": config.distillation.judge}
    return [(name, role) for name, role in roles.items() if role is not None]


def _topologies(config: Config) -> list[str]:
    searcher, found = config.topologies.searcher, list[str]()
    if searcher is not None:
        found += _role("topologies.searcher", searcher, config)
        if searcher.engine is None and searcher.base_url is None:
            found.append(
                "topologies.searcher: needs engine or base_url; hosted models do not go on with a turn of theirs."
            )
    agents = {"single_agent": config.topologies.single_agent, "no_retrieval": config.topologies.no_retrieval}
    for name, agent in agents.items():
        if agent.prompt is not None and not Path(agent.prompt).is_file():
            found.append(f"topologies.{name}.prompt: there is no file {agent.prompt}.")
        if agent.max_tokens is not None and agent.max_tokens < 1:
            found.append(f"topologies.{name}.max_tokens: must be at least 1.")
    return found


def _engines(config: Config) -> list[str]:
    return [
        f"engines.{name}.{key}: must be 1 to 86400 seconds."
        for name, engine in config.engines.items()
        for key in ("ready_within_s", "health_timeout_s")
        if not 1 <= getattr(engine, key) <= 86_400
    ]


def _missing_files(config: Config) -> list[str]:
    found = [
        f"engines.{name}.path: {engine.path} holds no config.json; it must be a model's folder."
        for name, engine in config.engines.items()
        if engine.path.startswith("/") and not (Path(engine.path) / "config.json").is_file()
    ]
    if (scope := config.search.scope) and not Path(scope).is_file():
        found.append(f"search.scope: there is no file {scope}.")
    found += [
        f"retrieval.documents: there is no file or folder {path}."
        for path in config.retrieval.documents
        if not Path(path).exists()
    ]
    return found


def _versions(config: Config) -> list[str]:
    found = [
        f"engines.{name}.adapter_rank: vLLM takes {', '.join(map(str, _RANKS[:-1]))} or {_RANKS[-1]} only; take the "
        "next one above that of the adapters."
        for name, engine in config.engines.items()
        if engine.adapter_rank is not None and engine.adapter_rank not in _RANKS
    ]
    start, executor = config.versions.start, config.roles.execution
    if start is None:
        return found
    if not (Path(start) / MANIFEST).is_file():
        found.append(f"versions.start: {start} holds no {MANIFEST}; name the folder of a published version.")
    if executor.engine is None and executor.base_url is None:
        found.append("versions.start: a provider loads no adapters; give roles.execution an engine, or leave it out.")
    if (engine := config.engines.get(executor.engine or "")) and engine.adapter_rank is None:
        found.append(f"versions.start: needs engines.{executor.engine}.adapter_rank, the rank of its adapter or more.")
    return found


def _gate(gate: GateConfig) -> list[str]:
    found = [
        f"versions.gate.{field}: must be more than 0 and less than 1."
        for field in ("margin", "error")
        if not 0 < getattr(gate, field) < 1
    ]
    if not 0 < gate.canary_share <= 1:
        found.append("versions.gate.canary_share: must be more than 0 and at most 1; 1 is all runs.")
    if gate.most_trials < 1:
        found.append("versions.gate.most_trials: must be 1 or more; a decision takes a hundred or more.")
    if not 0 < gate.most_tokens < math.inf:
        found.append("versions.gate.most_tokens: must be more than 0; 1 allows no more than the active version spends.")
    return found


def _retrieval(retrieval: RetrievalConfig, config: Config) -> list[str]:
    found = _embedder(retrieval.embedder, config)
    if (retrieval.address is None) == (retrieval.index is None):
        found.append(
            "retrieval: give either address (a retrieval server) or index (a folder), not both and not neither."
        )
    if retrieval.documents and retrieval.index is None:
        found.append("retrieval.documents: needs retrieval.index, the folder that their index is kept in.")
    if not retrieval.timeout_s > 0:
        found.append("retrieval.timeout_s: must be more than 0.")
    if not 32 <= retrieval.chunk_tokens <= 8192:
        found.append("retrieval.chunk_tokens: must be 32 to 8192.")
    if not 0 <= retrieval.batching.wait_ms <= 1000:
        found.append("retrieval.batching.wait_ms: must be 0 to 1000.")
    if retrieval.batching.most < 1:
        found.append("retrieval.batching.most: must be at least 1, which searches for each query alone.")
    if retrieval.batching.cache < 0:
        found.append("retrieval.batching.cache: must be 0 or more; 0 keeps none.")
    return found


def _embedder(embedder: EmbedderConfig, config: Config) -> list[str]:
    keys = ("engine", "base_url", "model", "dimension", "query_prefix", "passage_prefix")
    given = [key for key in keys if getattr(embedder, key)]
    if embedder.kind == "minilm":
        return [f'retrieval.embedder.{key}: is for kind "endpoint" only.' for key in given]
    found = [
        f'retrieval.embedder.{key}: missing; kind "endpoint" needs it.'
        for key in ("model", "dimension")
        if key not in given
    ]
    found += _key_variable("retrieval.embedder", embedder.api_key_env)
    if (embedder.engine is None) == (embedder.base_url is None):
        found.append("retrieval.embedder: give either engine (a table of engines) or base_url.")
    if _has_query(embedder.base_url):
        found.append(f"retrieval.embedder.base_url: {_NO_QUERY}")
    if embedder.engine is not None and embedder.engine not in config.engines:
        found.append(f"retrieval.embedder.engine: no table engines.{embedder.engine}; add it, or name a base_url.")
    return found


def _has_query(url: str | tuple[str, ...] | None) -> bool:
    return any({"?", "#"} & set(each) for each in ([url] if isinstance(url, str) else url or ()))


def _prices(config: Config) -> list[str]:
    return [
        f"prices.{model!r}.{field}: must be 0 to {MOST_DOLLARS:,}, in dollars for a million tokens."
        for model, price in config.prices.items()
        for field in price.impossible
    ]
