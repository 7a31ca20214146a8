"""The probes of `rolegate check --live`. They start the config's engines and send a few small
requests to the models of the roles, the index or server of `[retrieval]`, the reranker and the tool
servers. The requests are sent in the same way as the gateway sends them. Further indexes and the
models of managers are not probed.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from msgspec.structs import replace

from router.calls import Role
from router.errors import JSON_ERRORS, BadConfig, BadIndex, UpstreamError, UpstreamUnavailable
from router.frozen import Frozen
from router.ledger import Ledger
from router.models import Completion
from router.models.adapters import Adapters
from router.protocol import Passage
from router.trace import Price, RoleName
from serving.config.config import Config, RetrievalConfig, RoleConfig, ToolServerConfig
from serving.config.prices import litellm_entry, prices_of
from serving.config.secrets import api_key
from serving.engines.engine import Log
from serving.live_check.estimate import Measured, Use, estimate
from serving.live_check.turns import DUE, PROTOCOLS, TURNS, ProbeTurn
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index
from serving.retrieval.opening import open_embedder, open_retriever, vector_store
from serving.retrieval.reranker import rerank
from serving.startup import Started, open_upstreams
from serving.tools.failures import reason
from serving.topologies import condenser_config

_QUERY = "Who directed the film Heat?"
_QUOTED_CHARS = 80
_LISTED_WITHIN_S = 10.0


class ProbeResult(Frozen):
    """Result of one probe, such as whether a model can be reached."""

    good: bool | None
    """Whether the result is good; None if this is unknown, as for a model without a known price."""
    word: str = ""
    """The result in a few words, such as `no such model`."""
    advice: str = ""
    """Problem that the probe has found, and what to do; empty for a good result."""
    needed: bool = False
    """True if the gateway needs a good result of this probe to answer questions well."""


ProbeResults = dict[str, ProbeResult]
"""Results of one role, server or index, by the name of the probe, such as `reachable`."""


class RoleCheck(Frozen):
    """Probe results of one role, and the role's estimated tokens and cost for one question."""

    model: str
    probes: ProbeResults
    typical: Use
    at_most: Use
    price: Price | None
    dollars: tuple[float, float] | None
    """Cost of `typical` and of `at_most` in dollars; None if the price is unknown."""


class LiveCheck(Frozen):
    """The results of all probes of a config."""

    roles: dict[RoleName, RoleCheck]
    condenser: ProbeResults
    """Results of the condenser, the role that rewrites the questions of conversations."""
    retrieval: dict[str, ProbeResults]
    """Results of the parts that search. The keys are `retrieval` if the config names a retrieval
    server, or else `embedder` and `index`. A further key is `reranker` if the config has a
    reranker.
    """
    tools: dict[str, ProbeResults]
    """Results of the tool servers, by the server's table in the config, such as `tools.web`."""

    @property
    def probes(self) -> dict[str, ProbeResults]:
        """All results together, by the name of the role, part or tool server."""
        return {
            **{name: role.probes for name, role in self.roles.items()},
            "condenser": self.condenser,
            **self.retrieval,
            **self.tools,
        }

    @property
    def works(self) -> bool:
        """True if all results that are `needed` are good."""
        results = chain.from_iterable(probes.values() for probes in self.probes.values())
        return all(result.good or not result.needed for result in results)


class _Probed(NamedTuple):
    """Results of a role's probe turns (small requests). The model's context length and price are
    checked later.
    """

    probes: ProbeResults
    measured: Measured
    context: int | None
    """Context length of the model in tokens, from the config or the endpoint; None if neither
    states it.
    """


async def live_check(config: Config, log: Log, limit_s: float) -> LiveCheck:
    """Run all probes of `config`. `limit_s`: max seconds of a model call, and of the start of a
    tool server. Raises `BadConfig` if an engine or the embedder cannot be opened.
    """
    roles = config.roles.by_name
    # The judge of trials is not probed, so its engine is not needed
    config = replace(config, distillation=replace(config.distillation, judge=None))
    async with open_upstreams(config, log, partial(_opened, config, log)) as started:
        table = "condenser" if config.condenser else "roles.delegation"
        probing = (
            *(
                _probe_role(*role, started, log, limit_s, key=f"roles.{role[0]}")
                for role in roles.items()
            ),
            _probe_role("condenser", condenser_config(config), started, log, limit_s, key=table),
        )
        listing = (_probe_tools(*server, limit_s) for server in config.tools.items())
        probed, retrieval, tools = await asyncio.gather(
            asyncio.gather(*probing),
            _probe_retrieval(config.retrieval, started.retrieval),
            asyncio.gather(*listing),
        )
        if config.reranker:
            request = rerank(
                config.reranker, started.session, _QUERY, [Passage("", _QUERY, _QUERY)]
            )
            retrieval["reranker"] = await _reached(request, "correct [reranker] in the config")
    prices = await prices_of(roles, config.prices)
    *of_roles, of_condenser = probed
    results = dict(zip(roles, of_roles, strict=True))
    uses = estimate(config, {name: result.measured for name, result in results.items()})
    return LiveCheck(
        {
            name: _judged(roles[name], result, *uses[name], prices[name])
            for name, result in results.items()
        },
        of_condenser.probes,
        retrieval,
        {f"tools.{name}": probes for name, probes in zip(config.tools, tools, strict=True)},
    )


async def _probe_role(
    name: str,
    config: RoleConfig,
    started: Started[Any],
    log: Log,
    limit_s: float,
    *,
    key: str,
) -> _Probed:
    """Send the probe turns of a role to its model (see `turns.py`). If the first call fails, the
    only result is `reachable`, with the reason. `key`: table of the config that describes the role.
    """
    # A role object remembers which parameters its endpoint refuses, so each turn gets a new one
    new_role = partial(started.new_role, name, replace(config, attempts=1))
    role: Role = new_role()
    measured = Measured(len(role.system))
    served = await _served(started.session, role, config) if role.streams else {}
    context = config.context_tokens or served.get(config.model)
    first, *others = TURNS[name]
    try:
        completion = await _ask(role, first, limit_s)
    except UpstreamError as error:
        result = _refusal(error, key)
        if served and config.model not in served:
            models = ", ".join([*served][:8])
            advice = f"the endpoint does not serve {config.model}; name one of its models: {models}"
            result = ProbeResult(False, "no such model", advice, needed=True)
        return _Probed({"reachable": result}, measured, context)

    asking = (_ask(new_role(), turn, limit_s) for turn in others)
    completions = [completion, *await asyncio.gather(*asking, return_exceptions=True)]
    stops = ProbeResult(True, "honoured")
    if any(isinstance(each, Completion) and each.overran for each in completions):
        advice = (
            "the endpoint ignores stop strings, so the model writes more text, which the gateway "
            "cuts off, but which you pay for; to save this cost, use another server"
        )
        stops = ProbeResult(False, "ignored", advice)
    usage = ProbeResult(
        False,
        "none",
        "costs are unknown, because the endpoint reports no token counts; use another endpoint",
    )
    if completion.usage is not None:
        usage = ProbeResult(True, "counted")
        chars = sum(len(message.content) for message in role.opening(first.text))
        a_token = chars / max(1, completion.usage.prompt_tokens)
        measured = Measured(len(role.system), a_token, completion.usage.completion_tokens)
    log(f"{name}: {config.model} has been probed")
    probes = {
        "reachable": ProbeResult(True),
        "protocol": _protocol(name, completions),
        "stops": stops,
        "usage": usage,
    }
    return _Probed(probes, measured, context)


async def _ask(role: Role, turn: ProbeTurn, limit_s: float) -> Completion:
    messages = (*role.opening(turn.text), *turn.then)
    try:
        async with asyncio.timeout(limit_s):
            return await role.ask(
                messages, PROTOCOLS[role.name][1], Ledger(), pattern=turn.pattern(role.name)
            )
    except TimeoutError:
        raise UpstreamUnavailable(
            f"no answer within {limit_s:g} s; if the model is still loading, raise --timeout",
            endpoint=role.model.endpoint,
        ) from None


async def _served(
    session: aiohttp.ClientSession, role: Role, config: RoleConfig
) -> Mapping[str, int | None]:
    """Return the models that a role's endpoint lists, each with its context length in tokens, or
    None if the length is unknown. Empty if the endpoint does not list its models.
    """
    adapters = Adapters(session, role.model.endpoint, api_key(config.api_key_env))
    try:
        async with asyncio.timeout(_LISTED_WITHIN_S):
            models = await adapters.served()
    except (aiohttp.ClientError, OSError, ValueError, *JSON_ERRORS):
        return {}
    return {model.id: model.max_model_len for model in models}


def _protocol(name: str, results: Sequence[Completion | BaseException]) -> ProbeResult:
    """Check the format of the outputs in a role's probe turns. The result says how many outputs
    have the format that the role needs. If half of the outputs or more lack this format, the result
    says that the model cannot do the role's work. `results`: the output or the error of each turn.
    """
    slips = []
    for turn, result in zip(TURNS[name], results, strict=True):
        if isinstance(result, BaseException):
            slips.append(f"a call failed: {result}")
        elif not turn.follows(name, result):
            cut = ""
            if result.finish_reason == "length":
                cut = ", and was cut off; raise max_tokens"
            slips.append(
                f"{DUE[turn.due]} was expected, but the model wrote {_quoted(result.text)}{cut}"
            )
    word = f"{len(results) - len(slips)} of {len(results)}"
    if not slips:
        return ProbeResult(True, word)

    advice = f"the model kept to the role's output format in {word} turns: {slips[0]}"
    if 2 * len(slips) < len(results):
        advice += "; each mistake costs another call to correct it, or loses a result"
        return ProbeResult(False, word, advice)
    advice += "; the model cannot do this role's work: choose another model or prompt"
    # The condenser has a single probe turn. One bad output is too little to call the config bad.
    return ProbeResult(False, word, advice, needed=len(results) > 1)


def _refusal(error: UpstreamError, key: str) -> ProbeResult:
    """Return the result of the probe `reachable` after the first call of a role has failed with
    `error`, including advice. `key`: table of the config that describes the role.
    """
    what = f"{error.args[0]} ({error.endpoint})"
    if isinstance(error, UpstreamUnavailable):
        return ProbeResult(False, "no", what, needed=True)
    advice = (
        f"check the key that {key}.api_key_env names, the model's name, that base_url ends in "
        f"/v1, and whether the model needs {key}.system_role = false"
    )
    return ProbeResult(False, "refused", f"{what}; {advice}", needed=True)


def _judged(
    config: RoleConfig,
    probed: _Probed,
    typical: Use,
    at_most: Use,
    price: Price | None,
) -> RoleCheck:
    """Return the check of a role: the results of its probe turns, the assessment of its model's
    context length and price, and the cost of a question. `typical`, `at_most`: estimates of calls
    and tokens for one question.
    """
    probes = probed.probes
    if "stops" in probes:
        context = probed.context
        if config.engine is None and config.base_url is None:
            context = context or litellm_entry(config.model).get("max_input_tokens")
        probes["context"] = _judged_context(context, typical, at_most)
        probes["price"] = ProbeResult(
            None, "unknown", f'the model\'s price is unknown; set it in [prices."{config.model}"]'
        )
        if price is not None:
            probes["price"] = ProbeResult(True, f"${price.prompt:g} / ${price.completion:g}")
    dollars = (typical.cost(price), at_most.cost(price)) if price else None
    return RoleCheck(config.model, probes, typical, at_most, price, dollars)


def _judged_context(tokens: int | None, typical: Use, at_most: Use) -> ProbeResult:
    if tokens is None:
        calls = f"set context_tokens; calls take {typical.longest} to {at_most.longest} tokens"
        return ProbeResult(None, "unknown", f"the model's context length is unknown; {calls}")
    if tokens >= at_most.longest:
        return ProbeResult(True, str(tokens))
    advice = (
        f"the context length is {tokens} tokens, but a typical call takes {typical.longest}, and "
        f"up to {at_most.longest} if a question uses up all limits; serve the model with a longer "
        "context, or lower max_tokens, search.top_k or retrieval.chunk_tokens"
    )
    return ProbeResult(False, str(tokens), advice, needed=tokens < typical.longest)


async def _probe_tools(name: str, config: ToolServerConfig, limit_s: float) -> ProbeResults:
    """Start a tool server, or connect to it, and check that it has the tools in `allow`."""
    from serving.tools.connection import connect

    try:
        async with asyncio.timeout(limit_s), connect(name, config) as connection:
            listed = [tool.name for tool in await connection.tools()]
    except Exception as error:
        advice = f"{reason(error)}; correct tools.{name} in the config, or start the server"
        return {"starts": ProbeResult(False, "no", advice, needed=True)}
    lacking = ", ".join(tool for tool in config.allow if tool not in listed)
    others = ", ".join(tool for tool in listed if tool not in config.allow)
    word = ", ".join(tool for tool in listed if tool in config.allow) or "none allowed"
    if others:
        word += f"; not allowed: {others}"
    advice = f"correct tools.{name}.allow: the server has no tool {lacking}" if lacking else ""
    return {
        "starts": ProbeResult(True),
        "tools": ProbeResult(not lacking, word, advice, needed=True),
    }


def _quoted(text: str) -> str:
    """Return the beginning of a text on one line, in quotation marks; or the word "nothing" if the
    text is blank.
    """
    shown = " ".join(text.split())
    if len(shown) > _QUOTED_CHARS:
        shown = f"{shown[: _QUOTED_CHARS - 1]}…"
    return f"“{shown}”" if shown else "nothing"


def _opened(config: Config, log: Log, *, cpu_threads: int) -> AbstractAsyncContextManager[Any]:
    """Return a context manager that connects to the retrieval server if the config names a server,
    or else opens only the embedder. `open_retriever` is not used for an index, because it could
    build the index.
    """
    retrieval = config.retrieval
    if retrieval.address is not None:
        return open_retriever(retrieval, log)
    return open_embedder(retrieval.embedder, config.engines, log, cpu_threads=cpu_threads)


async def _probe_retrieval(config: RetrievalConfig, opened: Any) -> dict[str, ProbeResults]:
    """Probe the retrieval server, or the embedder and the index. `opened`: the value that `_opened`
    yields.
    """
    if config.address is None:
        return await asyncio.to_thread(_probe_index, config, opened)
    advice = "start `rolegate retrieve serve` at retrieval.address, or correct the address"
    return {"retrieval": await _reached(opened.search([_QUERY], 1), advice)}


async def _reached(request: Awaitable[object], advice: str) -> ProbeResults:
    """Return the result of a probe `reachable`, which is good if `request` succeeds. `advice`: what
    to do if the request fails.
    """
    try:
        await request
    except UpstreamError as error:
        return {"reachable": ProbeResult(False, "no", f"{error}; {advice}", needed=True)}
    return {"reachable": ProbeResult(True)}


def _probe_index(config: RetrievalConfig, embedder: Embedder) -> dict[str, ProbeResults]:
    """Return the probe results of the embedder and the index. Blocks the calling thread."""
    folder = Path(config.index or "")
    embeds = ProbeResult(True, f"{embedder.dimension} numbers")
    built = ProbeResult(None, "not yet", "the index is built when the gateway starts")
    try:
        embedder.embed([_QUERY], queries=True)
    except (UpstreamError, BadConfig) as error:
        embeds = ProbeResult(False, "no", str(error), needed=True)
    try:
        if folder.exists() or not config.documents:
            store = vector_store(config)
            index = Index.open(folder, embedder, store=store)
            if not store.is_complete(folder / index.manifest.generation):
                raise BadIndex(
                    f"{folder}: passages are missing in {store.name}; run `rolegate index build`."
                )
            built = ProbeResult(
                True, f"{len(index.passages)} passages, {index.manifest.searched_by}"
            )
    except (UpstreamError, BadIndex) as error:
        built = ProbeResult(False, "no", str(error), needed=True)
    return {"embedder": {"reachable": embeds}, "index": {"built": built}}
