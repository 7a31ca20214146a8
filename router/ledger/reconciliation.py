"""Reconciliation: compare the tokens in the ledger with the engines' own counters."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

from router.errors import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.frozen import Frozen
from router.models.failures import without_userinfo

ReconciliationVerdict = Literal["equal", "within_bounds", "different", "unknown"]
_WORSE: tuple[ReconciliationVerdict, ...] = ("equal", "within_bounds", "different")
"""Verdicts of a comparison, from best to worst."""


class Tokens(Frozen):
    """Prompt and completion tokens, counted separately."""

    prompt: int
    completion: int


class EngineCount(Frozen):
    """Tokens that an inference engine has counted since its start, for all its clients together."""

    start: float
    """Unix time in seconds at which the engine started."""
    tokens: Tokens


class LedgerSum(Frozen):
    """Sums over the calls of one deployment in the ledger."""

    completed_calls: int
    """Number of completed calls."""
    uncertain_calls: tuple[str, ...]
    """Identifiers (`OpenedCall.request_id`) of calls whose tokens are not known exactly, because
    the calls were interrupted, failed or are still running. At most 1000 are listed.
    """
    lower_bound: Tokens
    """Tokens of the completed calls, plus the known tokens of the interrupted calls. Tokens that
    were only estimated do not count.
    """
    upper_bound: Tokens
    """Max tokens that all calls together can have used. An uncertain call counts with the upper
    bound of its prompt tokens (`OpenedCall.prompt_bound`) and with its output limit
    (`OpenedCall.max_tokens`).
    """
    complete: bool = True
    """False if calls of the time span have been deleted, so that the sums are too low."""


class EngineCounts(Protocol):
    """Protocol of a reader of the counters of inference engines."""

    async def read(self, base_url: str) -> EngineCount:
        """Return the counters of the engine at `base_url`. Raises `UpstreamError`."""


class LedgerSums(Protocol):
    """Protocol of a store that sums the calls of a deployment in the ledger."""

    async def since(self, deployment: str, start: float) -> LedgerSum:
        """Sum the calls of `deployment` that started at the Unix time `start` or later. Raises
        `StoreFailed`.
        """


class ReconciledTokens(Frozen):
    """Prompt or completion tokens of one deployment, as counted by the engine and by the ledger."""

    engine: int
    """Tokens that the engine has counted."""
    ledger: int
    """Tokens that the calls in the ledger have certainly used: a lower bound."""
    ledger_max: int
    """Tokens that the calls in the ledger have used at most: an upper bound."""

    @property
    def verdict(self) -> ReconciliationVerdict:
        """Result of the comparison: `equal` to the lower bound, `within_bounds`, or `different`."""
        if self.engine == self.ledger:
            return "equal"
        return "within_bounds" if self.ledger <= self.engine <= self.ledger_max else "different"


class Reconciliation(Frozen):
    """Comparison of the ledger and an engine for one deployment, since the engine's start."""

    deployment: str
    verdict: ReconciliationVerdict
    reason: str = ""
    """The reason why nothing was compared; only for the verdict `unknown`."""
    start: float | None = None
    """Unix time in seconds at which the engine started; None for the verdict `unknown`."""
    completed_calls: int = 0
    uncertain_calls: tuple[str, ...] = ()
    """See `LedgerSum.uncertain_calls`; these calls may have used more tokens than the ledger shows.
    """
    prompt_tokens: ReconciledTokens | None = None
    completion_tokens: ReconciledTokens | None = None


class Reconciler(Frozen):
    """Compares the ledger and the engines for every deployment that a role uses."""

    deployments: Mapping[str, str | None]
    """Base URL of each deployment, by its name in the ledger; None for a provider that is called
    through LiteLLM.
    """
    engines: EngineCounts
    ledger: LedgerSums

    async def reconcile(self) -> list[Reconciliation]:
        """Return a comparison for each deployment. Raises `StoreFailed`."""
        return [await self._compare(name, base_url) for name, base_url in self.deployments.items()]

    async def _compare(self, deployment: str, base_url: str | None) -> Reconciliation:
        def unknown(reason: str) -> Reconciliation:
            return Reconciliation(deployment, "unknown", reason)

        if base_url is None:
            return unknown("its provider, called through LiteLLM, has no counters to compare with")

        # The lower bound is read before the engine's counters, and the upper bound after them. So
        # calls that end in the meantime do not move the engine's count out of the bounds.
        try:
            begun = await self.engines.read(base_url)
            before = await self.ledger.since(deployment, begun.start)
            engine = await self.engines.read(base_url)
        except UpstreamError as error:
            return unknown(str(error.args[0]))
        after = await self.ledger.since(deployment, begun.start)

        if engine.start != begun.start:
            return unknown("the engine was restarted during the comparison; try again")
        if not after.complete:
            return unknown(
                "calls since the engine's start were deleted (server.keep_days); restart the engine"
            )

        prompt = ReconciledTokens(
            engine.tokens.prompt, before.lower_bound.prompt, after.upper_bound.prompt
        )
        completion = ReconciledTokens(
            engine.tokens.completion, before.lower_bound.completion, after.upper_bound.completion
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


_SAMPLE = re.compile(
    r"^(vllm:(?:prompt|generation)_tokens_total|vllm:prompt_tokens_created|"
    r"process_start_time_seconds)"
    r"(?:\{.*\})? +(\d[\d.e+]*)",
    re.MULTILINE,
)


class VLLMCounts(Frozen):
    """Reads the token counters of vLLM engines from their HTTP endpoint `/metrics`.

    vLLM counts the prompt of a request when it writes the first output token, and each output token
    when it is written. So a request that is aborted before its first token adds nothing. A request
    that is aborted later adds its prompt and the output tokens so far.
    """

    fetch: Callable[[str], Awaitable[str]]
    """Returns the text at a URL; raises `OSError` if it cannot be read."""

    async def read(self, base_url: str) -> EngineCount:
        """Return the counters of the engine at `base_url`, such as `http://127.0.0.1:8000/v1`.
        Raises `UpstreamError` if they cannot be read.
        """
        url = f"{base_url.rstrip('/').removesuffix('/v1')}/metrics"
        shown_url = without_userinfo(url)
        try:
            metrics = await self.fetch(url)
        except OSError as error:
            cause = type(error.__cause__ or error).__name__
            raise UpstreamUnavailable(
                f"{shown_url} cannot be read ({cause}); check that the engine runs",
                endpoint=shown_url,
            ) from error
        return _count(metrics, shown_url)


def _count(metrics: str, endpoint: str) -> EngineCount:
    """Return the counters in the text of `/metrics`, summed over all labels. `start` is the time
    at which the counters were created. If the engine does not report it, `start` is the time at
    which the engine's process started.
    """
    samples = dict[str, list[float]]()
    for name, value in _SAMPLE.findall(metrics):
        samples.setdefault(name, []).append(float(value))

    try:
        prompt = samples["vllm:prompt_tokens_total"]
        completion = samples["vllm:generation_tokens_total"]
        starts = samples.get("vllm:prompt_tokens_created") or samples["process_start_time_seconds"]
    except KeyError as missing:
        raise UpstreamProtocolError(
            f"{endpoint} has no metric {missing}; only engines with vLLM's metrics can be compared",
            endpoint=endpoint,
        ) from None
    return EngineCount(min(starts), Tokens(int(sum(prompt)), int(sum(completion))))
