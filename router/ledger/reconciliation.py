"""Reconciliation: the ledger's sums against the engines' own counters."""

import re
from collections.abc import Mapping
from typing import Literal, Protocol

import aiohttp
import msgspec

from router.errors import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.models.failures import without_userinfo
from router.models.session import read_body

ReconciliationVerdict = Literal["equal", "within_bounds", "different", "unknown"]
_WORSE: tuple[ReconciliationVerdict, ...] = ("equal", "within_bounds", "different")


class Tokens(msgspec.Struct, frozen=True):
    """Prompt and completion apart."""

    prompt: int
    completion: int


class EngineCount(msgspec.Struct, frozen=True):
    """The counters of an engine since it was started, over all its clients."""

    start: float
    """Unix time, seconds."""
    tokens: Tokens


class LedgerSum(msgspec.Struct, frozen=True):
    """The ledger's sums over one deployment's calls."""

    completed_calls: int
    uncertain_calls: tuple[str, ...]
    """Calls that were cut, that failed, or that are running, by `OpenedCall.request_id`; at
    most 1000.
    """
    least: Tokens
    """The counts of completed calls, and what cut ones are known to have spent. Estimates are
    not known.
    """
    most: Tokens
    """The most that all calls can have spent: of each uncertain one, its prompt's bound and all
    it may write.
    """
    complete: bool = True
    """False where calls of that time have been deleted."""


class EngineCounts(Protocol):
    """Reads engines' own counters."""

    async def read(self, base_url: str) -> EngineCount:
        """The counters of the engine at `base_url`. Raises `UpstreamError`."""


class LedgerSums(Protocol):
    """Sums the ledger."""

    async def since(self, deployment: str, start: float) -> LedgerSum:
        """The calls of `deployment` that started at the Unix time `start` or later. Raises
        `StoreFailed`.
        """


class ReconciledTokens(msgspec.Struct, frozen=True):
    """Tokens of one kind, on both sides."""

    engine: int
    ledger: int
    """The sum that the ledger has for certain."""
    ledger_most: int
    """The most that its calls can have spent."""

    @property
    def verdict(self) -> ReconciliationVerdict:
        """The result of the comparison."""
        if self.engine == self.ledger:
            return "equal"
        return "within_bounds" if self.ledger <= self.engine <= self.ledger_most else "different"


class Reconciliation(msgspec.Struct, frozen=True):
    """One deployment, compared since its engine was started."""

    deployment: str
    verdict: ReconciliationVerdict
    reason: str = ""
    """The reason, where there is no comparison."""
    start: float | None = None
    """The Unix time at which the engine began to count."""
    completed_calls: int = 0
    uncertain_calls: tuple[str, ...] = ()
    """Calls that may have spent more than the ledger has for certain, by the name that the
    engine got.
    """
    prompt_tokens: ReconciledTokens | None = None
    completion_tokens: ReconciledTokens | None = None


class Reconciler:
    """Compares all deployments that the roles use."""

    def __init__(
        self, deployments: Mapping[str, str | None], engines: EngineCounts, ledger: LedgerSums
    ) -> None:
        """`deployments`: as the ledger names them, each with the base URL of its engine; None
        for a provider's.
        """
        self._deployments = deployments
        self._engines = engines
        self._ledger = ledger

    async def reconcile(self) -> list[Reconciliation]:
        """One comparison for each deployment. Raises `StoreFailed`."""
        return [await self._compare(name, base_url) for name, base_url in self._deployments.items()]

    async def _compare(self, deployment: str, base_url: str | None) -> Reconciliation:
        if base_url is None:
            return Reconciliation(
                deployment, "unknown", "a provider's models have no counters that can be read"
            )
        try:
            began = await self._engines.read(base_url)
            # What is certain is read before the engine, and what is possible after it, so that
            # calls which go on meanwhile lie in between.
            before = await self._ledger.since(deployment, began.start)
            engine = await self._engines.read(base_url)
        except UpstreamError as error:
            return Reconciliation(deployment, "unknown", str(error.args[0]))
        after = await self._ledger.since(deployment, began.start)
        if engine.start != began.start:
            return Reconciliation(
                deployment, "unknown", "the engine was restarted meanwhile; ask again"
            )
        if not after.complete:
            return Reconciliation(
                deployment, "unknown", "calls since the engine's start have been deleted"
            )
        prompt = ReconciledTokens(engine.tokens.prompt, before.least.prompt, after.most.prompt)
        completion = ReconciledTokens(
            engine.tokens.completion, before.least.completion, after.most.completion
        )
        return Reconciliation(
            deployment=deployment,
            verdict=max(prompt.verdict, completion.verdict, key=_WORSE.index),
            start=engine.start,
            completed_calls=after.completed_calls,
            uncertain_calls=after.uncertain_calls,
            prompt_tokens=prompt,
            completion_tokens=completion,
        )


_TIMEOUT = aiohttp.ClientTimeout(total=10)
_SAMPLE = re.compile(
    r"^(vllm:(?:prompt|generation)_tokens_total|vllm:prompt_tokens_created|"
    r"process_start_time_seconds)"
    r"(?:\{.*\})? +(\d[\d.e+]*)",
    re.MULTILINE,
)


class VLLMCounts:
    """Reads `{root}/metrics`.

    vLLM counts a request's prompt when its first token is there, once, and each token as it is
    written: a request that is dropped before its first token adds nothing, and one that is dropped
    later what was written by then.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def read(self, base_url: str) -> EngineCount:
        """The counters of the engine at `base_url`, such as `http://127.0.0.1:8000/v1`. Raises
        `UpstreamError`.
        """
        url = f"{base_url.rstrip('/').removesuffix('/v1')}/metrics"
        shown = without_userinfo(url)
        try:
            async with self._session.get(url, timeout=_TIMEOUT, allow_redirects=True) as response:
                said = (await read_body(response)).decode(errors="replace")
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(
                f"{shown} cannot be read: {type(error).__name__}", endpoint=shown
            ) from error
        return _count(said, shown)


def _count(metrics: str, endpoint: str) -> EngineCount:
    """Sums over all labels. Counters tell when they began, or else the process does."""
    samples: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(metrics):
        samples.setdefault(name, []).append(float(value))
    try:
        prompt, completion = (
            samples[f"vllm:{kind}_tokens_total"] for kind in ("prompt", "generation")
        )
        begun = samples.get("vllm:prompt_tokens_created") or samples["process_start_time_seconds"]
    except KeyError as missing:
        raise UpstreamProtocolError(
            f"{endpoint} has no {missing}, so it is no vLLM engine", endpoint=endpoint
        ) from None
    return EngineCount(min(begun), Tokens(int(sum(prompt)), int(sum(completion))))
