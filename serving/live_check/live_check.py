"""A few small questions to what a config names, asked as the gateway itself asks, with its
engines started.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from router.calls import Role
from router.errors import JSON_ERRORS, BadConfig, BadIndex, UpstreamError, UpstreamUnavailable
from router.ledger import Ledger
from router.models import Completion
from router.models.adapters import Adapters
from router.protocol.tags import without_thinking
from router.trace import Price, RoleName
from serving.config.config import Config, RoleConfig, ToolServerConfig
from serving.config.prices import litellm_entry, price_of
from serving.config.secrets import api_key
from serving.engines.engine import Log
from serving.live_check.estimate import Measured, Use, estimate
from serving.live_check.turns import TURNS, ProbeTurn
from serving.retrieval.adopt import SAME_EMBEDDER, agreement
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import open_embedder, open_retriever
from serving.startup import open_upstreams
from serving.tools.failures import reason

_REPEAT = ProbeTurn(
    "", bool, ("e", "o"), "Repeat this line: one two three four five six seven eight nine ten"
)
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}
_QUOTED_CHARS = 80
_LISTED_WITHIN_S = 10.0


class ProbeResult(msgspec.Struct, frozen=True):
    """Result of one probe: good, bad, or neither if it is unknown or unavailable here."""

    good: bool | None
    word: str = ""
    advice: str = ""
    """Meaning, and what to do; empty if the result is good."""
    needed: bool = False
    """Questions fail, or go wrong, unless this is good."""


ProbeResults = dict[str, ProbeResult]
"""By what was looked at, such as `reachable`."""


class RoleCheck(msgspec.Struct, frozen=True):
    """One role: its results, and what it takes to answer a question."""

    model: str
    probes: ProbeResults
    typical: Use
    at_most: Use
    price: Price | None
    dollars: tuple[float, float] | None
    """Cost of both uses, where the price is known."""


class LiveCheck(msgspec.Struct, frozen=True):
    """Everything that the probes found."""

    roles: dict[RoleName, RoleCheck]
    retrieval: dict[str, ProbeResults]
    tools: dict[str, ProbeResults]
    """By `tools.NAME`."""

    @property
    def probes(self) -> dict[str, ProbeResults]:
        """Results for roles, retrieval and tools, by name."""
        return {
            **{name: role.probes for name, role in self.roles.items()},
            **self.retrieval,
            **self.tools,
        }

    @property
    def works(self) -> bool:
        """Whether everything that is needed is good."""
        return not any(
            result.needed and not result.good
            for results in self.probes.values()
            for result in results.values()
        )


async def live_check(config: Config, log: Log, limit_s: float) -> LiveCheck:
    """Probe what `config` names; one question to a model may take `limit_s` seconds. Raises
    `BadConfig`.
    """
    opening = partial(_retrieval_probe, config, log)
    async with open_upstreams(config, log, opening) as started:
        probes = {
            name: _RoleProbe(name, role, partial(started.new_role, name), limit_s)
            for name, role in config.roles.by_name.items()
        }
        running = asyncio.gather(*(probe.run(started.session, log) for probe in probes.values()))
        listing = asyncio.gather(
            *(_probe_tools(name, server, limit_s) for name, server in config.tools.items())
        )
        _, retrieval, listed = await asyncio.gather(running, started.retrieval(), listing)
        tools = {
            f"tools.{name}": results for name, results in zip(config.tools, listed, strict=True)
        }
        uses = estimate(config, {name: probe.measured for name, probe in probes.items()})
        judged = (
            asyncio.to_thread(probe.judged, config, *uses[name]) for name, probe in probes.items()
        )
        return LiveCheck(
            dict(zip(probes, await asyncio.gather(*judged), strict=True)), retrieval, tools
        )


class _RoleProbe:
    def __init__(
        self,
        name: RoleName,
        config: RoleConfig,
        make: Callable[[RoleConfig], Role],
        limit_s: float,
    ) -> None:
        """`make` builds the role from its section; one question may take `limit_s` seconds."""
        self._name = name
        self._config = config
        self._make = make
        self._limit_s = limit_s
        self.measured = Measured(len(make(config).system))
        self._results = ProbeResults()
        self._context = config.context_tokens

    async def run(self, session: aiohttp.ClientSession, log: Log) -> None:
        """Ask, and keep the results; of a role that fails, the one that says why."""
        first, *others = TURNS[self._name]
        role = self._make(self._config)
        served = (
            await _served_models(session, role, api_key(self._config.api_key_env))
            if role.streams
            else {}
        )
        self._context = self._context or served.get(self._config.model)
        try:
            said = await self._ask(first)
        except UpstreamError as error:
            self._results = {"reachable": self._refusal(error, served)}
        else:
            turns = asyncio.gather(*map(self._ask, others), return_exceptions=True)
            turned, stops, schema = await asyncio.gather(turns, self._stops(), self._schema())
            no_usage = "its answers come without usage: their tokens are booked as unknown"
            protocol = self._protocol([said, *turned])
            self._results = {
                "reachable": ProbeResult(True),
                "protocol": protocol,
                "stops": stops,
                "usage": ProbeResult(True, "counted")
                if said.usage
                else ProbeResult(False, "none", no_usage),
                "schema": schema,
            }
            if said.usage is not None:
                chars = sum(len(message.content) for message in role.opening(first.text))
                a_token = chars / max(1, said.usage.prompt_tokens)
                self.measured = Measured(len(role.system), a_token, said.usage.completion_tokens)
        log(f"{self._name}: {self._config.model} is probed")

    async def _ask(self, turn: ProbeTurn, **changed: object) -> Completion:
        role = self._make(msgspec.structs.replace(self._config, attempts=1, **changed))
        try:
            async with asyncio.timeout(self._limit_s):
                messages = (*role.opening(turn.text), *turn.then)
                return await role.ask(messages, turn.stop, Ledger(), pattern=turn.pattern)
        except TimeoutError:
            said = (
                f"no answer within {self._limit_s:g} s; if it is still loading, allow more "
                "with --timeout"
            )
            raise UpstreamUnavailable(said, endpoint=role.model.endpoint) from None

    def _protocol(self, results: list[Completion | BaseException]) -> ProbeResult:
        """Count the turns that are what was due; more than half have to be."""
        slips = []
        for turn, said in zip(TURNS[self._name], results, strict=True):
            if isinstance(said, BaseException):
                slips.append(f"a turn could not be asked: {said}")
            elif not turn.follows(said):
                cut = (
                    ", and was cut off; raise max_tokens" if said.finish_reason == "length" else ""
                )
                slips.append(f"{turn.due} was due, but it wrote {_quoted(said.text)}{cut}")
        word = f"{len(results) - len(slips)} of {len(results)}"
        if not slips:
            return ProbeResult(True, word)
        advice = f"in {word} small turns it followed the protocol of its role: {slips[0]}"
        if 2 * len(slips) < len(results):
            return ProbeResult(
                False, word, f"{advice}; each slip costs a correction, or what was to be found"
            )
        do = "it cannot do this work, so name another model, or another prompt"
        return ProbeResult(False, word, f"{advice}; {do}", needed=True)

    async def _stops(self) -> ProbeResult:
        try:
            said = await self._ask(_REPEAT)
        except UpstreamError as error:
            return ProbeResult(None, "failed", f"stop strings: {error.args[0]}")
        if said.overran:
            advice = (
                "stop strings are ignored: the gateway cuts what is written past them, but "
                "you pay for it"
            )
            return ProbeResult(
                False,
                "ignored",
                f"{advice}; a server and a model that honour them are cheaper and quicker",
            )
        return (
            ProbeResult(None, "unknown")
            if said.finish_reason == "length"
            else ProbeResult(True, "honoured")
        )

    async def _schema(self) -> ProbeResult:
        try:
            turn = ProbeTurn("", bool, (), "Name any city, as JSON.")
            said = await self._ask(
                turn, extra_body={**self._config.extra_body, "response_format": _FORMAT}
            )
            if said.finish_reason == "length":
                return ProbeResult(None, "unknown")
            msgspec.json.decode(without_thinking(said.text), type=dict[str, str])["city"]
        except (UpstreamError, KeyError, *JSON_ERRORS):
            return ProbeResult(
                False, "not followed", "follows no JSON schema; the roles do without"
            )
        return ProbeResult(True, "followed")

    def _refusal(self, error: UpstreamError, served: Mapping[str, object]) -> ProbeResult:
        """The first failure's meaning, and what to do."""
        said = f"{error.args[0]} ({error.endpoint})"
        key = f"roles.{self._name}"
        status = found[1] if (found := re.search(r"HTTP (\d{3})", said)) else ""
        if status in ("401", "403"):
            variable = self._config.api_key_env
            do = f"export {variable}" if variable else f"name its variable in {key}.api_key_env"
            return ProbeResult(False, "wrong key", f"{said}; {do}", needed=True)
        if status == "404" and served:
            do = f"{self._config.model} is not there; there is: {', '.join([*served][:8])}"
            return ProbeResult(False, "no such model", do, needed=True)
        if isinstance(error, UpstreamUnavailable):
            return ProbeResult(
                False, "no", f"{said}; see that it runs and can be reached from here", needed=True
            )
        do = (
            "check the model's name, that base_url ends in /v1, and whether it needs "
            f"{key}.system_role = false"
        )
        return ProbeResult(False, "refused", f"{said}; {do}", needed=True)

    def judged(self, config: Config, typical: Use, upper: Use) -> RoleCheck:
        """The probe's result, with budgets and prices."""
        role = self._config
        price = price_of(self._config, config.prices)
        results = self._results
        if "stops" in results:
            results["context"] = self._judged_context(typical, upper)
            advice = "" if price else f'nobody tells its price; put it into [prices."{role.model}"]'
            results["price"] = ProbeResult(
                bool(price) or None,
                f"${price.prompt:g} / ${price.completion:g}" if price else "unknown",
                advice,
            )
        dollars = (typical.cost(price), upper.cost(price)) if price else None
        return RoleCheck(
            role.model,
            results,
            typical,
            upper,
            price,
            dollars,
        )

    def _judged_context(self, typical: Use, upper: Use) -> ProbeResult:
        hosted = self._config.engine is None and self._config.base_url is None
        tokens = self._context or (
            litellm_entry(self._config.model).get("max_input_tokens") if hosted else None
        )
        if tokens is None:
            return ProbeResult(
                None,
                "unknown",
                f"nobody tells its context; calls take {typical.longest} to {upper.longest}",
            )
        said = f"its context is {tokens} tokens, but a call takes"
        if tokens < typical.longest:
            do = "serve it with more, or lower max_tokens, search.top_k or retrieval.chunk_tokens"
            return ProbeResult(False, str(tokens), f"{said} {typical.longest}; {do}", needed=True)
        if tokens < upper.longest:
            do = "one that does is refused, so lower max_tokens or the search's budgets"
            return ProbeResult(
                False,
                str(tokens),
                f"{said} {upper.longest} where a question uses up all budgets; {do}",
            )
        return ProbeResult(True, str(tokens))


async def _served_models(
    session: aiohttp.ClientSession, role: Role, key: str | None
) -> Mapping[str, int | None]:
    """The context of each model, by name, in tokens, where the endpoint keeps a list and tells
    it.
    """
    try:
        async with asyncio.timeout(_LISTED_WITHIN_S):
            models = await Adapters(session, role.model.endpoint, key).served()
    except (aiohttp.ClientError, OSError, ValueError, *JSON_ERRORS):
        return {}
    return {model.id: model.max_model_len for model in models}


async def _probe_tools(name: str, config: ToolServerConfig, limit_s: float) -> ProbeResults:
    """The results of a server of tools, which is started or reached for it."""
    from serving.tools.connection import connect

    try:
        async with asyncio.timeout(limit_s), connect(name, config) as connection:
            listed = [tool.name for tool in await connection.tools()]
    except Exception as error:
        return {"starts": ProbeResult(False, "no", _printable(reason(error)), needed=True)}
    lacking = ", ".join(allowed for allowed in config.allow if allowed not in listed)
    others = ", ".join(tool for tool in listed if tool not in config.allow)
    word = ", ".join(tool for tool in listed if tool in config.allow) or "none allowed"
    advice = f"does not list {lacking}, which tools.{name}.allow names" if lacking else ""
    tools = ProbeResult(
        not lacking,
        _printable(f"{word}; not allowed: {others}" if others else word),
        advice,
        needed=True,
    )
    return {"starts": ProbeResult(True), "tools": tools}


def _quoted(text: str) -> str:
    """The beginning, on one line and with what a terminal would obey made visible."""
    short = text if len(text) <= _QUOTED_CHARS else f"{text[: _QUOTED_CHARS - 1]}…"
    return f"“{_printable(short)}”" if text.strip() else "nothing"


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


@asynccontextmanager
async def _retrieval_probe(
    config: Config, log: Log, *, cpu_threads: int
) -> AsyncIterator[Callable[[], Awaitable[dict[str, ProbeResults]]]]:
    """Open what is searched with; the call that probes it. `cpu_threads`: as for
    `open_retriever`.
    """
    retrieval = config.retrieval
    if retrieval.address is None:
        opened = open_embedder(retrieval.embedder, config.engines, log, cpu_threads=cpu_threads)
        async with opened as embedder:
            yield partial(
                asyncio.to_thread,
                _probe_index,
                Path(retrieval.index or ""),
                embedder,
                retrieval.documents,
            )
        return
    async with open_retriever(retrieval, log) as retriever:

        async def probe_server() -> dict[str, ProbeResults]:
            try:
                await retriever.search(["Who directed the film Heat?"], 1)
            except UpstreamError as error:
                advice = (
                    f"{error}; start `rolegate retrieve serve` there, or correct retrieval.address"
                )
                return {"retrieval": {"reachable": ProbeResult(False, "no", advice, needed=True)}}
            return {"retrieval": {"reachable": ProbeResult(True)}}

        yield probe_server


def _probe_index(
    folder: Path, embedder: Embedder, documents: tuple[str, ...]
) -> dict[str, ProbeResults]:
    """The results of the embedder and of the index, which is made of `documents` at the start.
    Blocks.
    """
    try:
        embedder.embed(["Who directed the film Heat?"], queries=True)
        embeds = ProbeResult(True, f"{embedder.dimension} numbers")
    except (UpstreamError, BadConfig) as error:
        embeds = ProbeResult(False, "no", str(error), needed=True)
    if documents and not folder.exists():
        built = {"built": ProbeResult(None, "not yet", "it is built when the gateway starts")}
    else:
        built = _probe_built(folder, embedder if embeds.good else None)
    return {"embedder": {"reachable": embeds}, "index": built}


def _probe_built(folder: Path, embedder: Embedder | None) -> ProbeResults:
    try:
        results = {"built": ProbeResult(True, f"{read_manifest(folder).passages} passages")}
        if embedder is None:
            return results
        index = Index.open(folder, embedder)
        same = agreement(index.passages, index.dense, embedder, [len(index.passages) // 2])
    except BadIndex as error:
        return {
            "built": ProbeResult(False, "no", f"{error} Run `rolegate index build`.", needed=True)
        }
    except RuntimeError:
        return {**results, "fits the embedder": ProbeResult(None, "unknown")}
    # not for NaN
    fits = same >= SAME_EMBEDDER
    advice = ""
    if not fits:
        advice = (
            "the embedder gives other vectors than the index holds; name the one that built "
            "it, or build the index again"
        )
    return {**results, "fits the embedder": ProbeResult(fits, f"{same:.2f}", advice, needed=True)}
