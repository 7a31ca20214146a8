"""An embedder behind an OpenAI-compatible `/v1/embeddings`, such as Qwen3-Embedding on vLLM."""

import asyncio
from collections.abc import Sequence
from threading import Lock

import aiohttp
import msgspec
import numpy as np

from router.errors import JSON_ERRORS, UpstreamProtocolError, UpstreamRefused, UpstreamUnavailable
from router.models.failures import Secrets, without_userinfo
from router.models.session import read_body
from serving.retrieval.embedder import Vectors

_MAX_BYTES = 32 << 20
"""Of a reply: 64 vectors of 16,384 dimensions, written out."""
_CHARS_A_TOKEN = 3
"""Fewer than tokenizers need for most languages, so that an estimate is rather too high."""


class _Embedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct, frozen=True):
    data: list[_Embedding]


class EndpointEmbedder:
    """Sends texts in batches over one pooled session, on an event loop of its own that runs while `embed` does.

    One call at a time; callers are batched above it, by `IndexSearcher`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        dimension: int,
        *,
        query_prefix: str = "",
        passage_prefix: str = "",
        api_key: str | None = None,
        max_tokens: int = 8192,
        timeout_s: float = 60.0,
        batch: int = 64,
    ) -> None:
        """`base_url` ends in `/v1`; the prefixes are put before queries and passages, for models that want them."""
        self._model, self._prefixes, self._batch = model, {True: query_prefix, False: passage_prefix}, batch
        self.identity, self.dimension, self.max_tokens = endpoint_identity(model, passage_prefix), dimension, max_tokens
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._endpoint, self._secrets = without_userinfo(self._url), Secrets(api_key, address=self._url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._session: aiohttp.ClientSession | None = None
        self._one_at_a_time = Lock()

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """As `Embedder.embed`."""
        inputs = [self._prefixes[queries] + text for text in texts]
        with self._one_at_a_time:
            rows = self._runner.run(self._embed_all(inputs))
        vectors = np.array(rows, dtype=np.float32).reshape(len(rows), self.dimension)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.all(lengths > 0):  # also catches NaN
            raise self._protocol_error("The embedding endpoint returned a vector without a direction")
        return np.ascontiguousarray(vectors / lengths, dtype=np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """As `Embedder.count_tokens`, estimated: endpoints do not share their tokenizers."""
        return [-(-len(text) // _CHARS_A_TOKEN) for text in texts]

    def close(self) -> None:
        """Close the session. Blocks, so from a thread, as `embed`."""
        with self._one_at_a_time:
            if self._session is not None:
                self._runner.run(self._session.close())
            self._runner.close()

    async def _embed_all(self, inputs: list[str]) -> list[list[float]]:
        rows: list[list[float]] = []
        for start in range(0, len(inputs), self._batch):
            texts = inputs[start : start + self._batch]
            body = await self._post(msgspec.json.encode({"model": self._model, "input": texts}))
            try:
                data = sorted(msgspec.json.decode(body, type=_Embeddings).data, key=lambda entry: entry.index)
            except JSON_ERRORS as error:
                raise self._protocol_error(f"Not a list of embeddings: {error}") from error
            if [entry.index for entry in data] != list(range(len(texts))):
                raise self._protocol_error(f"{len(texts)} texts were sent, {len(data)} embeddings came")
            if wrong := {len(entry.embedding) for entry in data} - {self.dimension}:
                raise self._protocol_error(
                    f"Vectors of dimension {min(wrong)} where {self.dimension} is configured; correct the dimension"
                )
            rows += [entry.embedding for entry in data]
        return rows

    async def _post(self, body: bytes) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
        try:
            async with self._session.post(self._url, data=body) as response:
                content = await read_body(response, _MAX_BYTES)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamUnavailable(
                f"No embeddings: {without_userinfo(str(error)) or type(error).__name__}", endpoint=self._endpoint
            ) from error
        if response.status != 200:
            kind = UpstreamUnavailable if response.status in (408, 429) or response.status >= 500 else UpstreamRefused
            reason = self._secrets.hidden(content.decode(errors="replace"))[:300]
            raise kind(f"No embeddings: HTTP {response.status}: {reason}", endpoint=self._endpoint)
        return content

    def _protocol_error(self, reason: str) -> UpstreamProtocolError:
        return UpstreamProtocolError(reason, endpoint=self._endpoint)


def endpoint_identity(model: str, passage_prefix: str) -> str:
    """The identity of an embedder: the vectors of passages depend on both."""
    return f"{model} {passage_prefix!r}" if passage_prefix else model
