"""What vLLM engines have counted, by their Prometheus metrics; and the double for tests."""

import re
from collections.abc import Mapping

import aiohttp

from router.errors import UpstreamError, UpstreamGarbled, UpstreamUnavailable
from router.reconciliation import EngineCount, Tokens
from router.secret import without_userinfo
from router.upstream_session import read_body

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_SAMPLE = re.compile(
    r"^(vllm:(?:prompt|generation)_tokens_total|vllm:prompt_tokens_created|process_start_time_seconds)"
    r"(?:\{.*\})? +(\d[\d.e+]*)",
    re.MULTILINE,
)


class VLLMCounts:
    """Reads `{root}/metrics`.

    vLLM counts a request's prompt when its first token is there, once, and each token as it is written: a request that
    is dropped before its first token adds nothing, and one that is dropped later what was written by then.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def read(self, base_url: str) -> EngineCount:
        """The counters of the engine at `base_url`, such as `http://127.0.0.1:8000/v1`. Raises `UpstreamError`."""
        url = f"{base_url.rstrip('/').removesuffix('/v1')}/metrics"
        shown = without_userinfo(url)
        try:
            async with self._session.get(url, timeout=_TIMEOUT, allow_redirects=True) as response:
                said = (await read_body(response)).decode(errors="replace")
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(f"{shown} cannot be read: {type(error).__name__}", endpoint=shown) from error
        return _count(said, shown)


class FixedCounts:
    """Tells what it is told to, by base URL: the shipped double of `EngineCounts`."""

    def __init__(self, counts: Mapping[str, EngineCount | UpstreamError]) -> None:
        self._counts = counts

    async def read(self, base_url: str) -> EngineCount:
        """That of `base_url`; an error is raised."""
        count = self._counts[base_url]
        if isinstance(count, UpstreamError):
            raise count
        return count


def _count(metrics: str, endpoint: str) -> EngineCount:
    """Sums over all labels. Counters tell when they began, or else the process does."""
    samples: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(metrics):
        samples.setdefault(name, []).append(float(value))
    try:
        prompt, completion = (samples[f"vllm:{kind}_tokens_total"] for kind in ("prompt", "generation"))
        begun = samples.get("vllm:prompt_tokens_created") or samples["process_start_time_seconds"]
    except KeyError as missing:
        raise UpstreamGarbled(f"{endpoint} has no {missing}, so it is no vLLM engine", endpoint=endpoint) from None
    return EngineCount(min(begun), Tokens(int(sum(prompt)), int(sum(completion))))
