import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from router.errors import BadConfig
from serving.retrieval.embedder import MiniLM


def test_vectors_are_unit_float32(embedder: MiniLM) -> None:
    """(batch, 384) float32, each row of length 1; no texts give no rows. A paraphrase is nearer than something else."""
    vectors = embedder.embed(["a kitten plays", "a young cat has fun", "a rocket engine"], queries=False)
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([], queries=False).shape == (0, 384)
    kitten, cat, rocket = vectors
    assert kitten @ cat > kitten @ rocket


@pytest.mark.parametrize(
    ("content", "said"), [(b"something else", "not the official weights.*Reinstall"), (None, "cannot be read")]
)
def test_other_weights_are_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    """Weights with another hash are never loaded; the message names the file and says what to do."""
    weights = tmp_path / "model.safetensors"
    if content is not None:
        weights.write_bytes(content)
    with pytest.raises(BadConfig, match=f"{weights}: {said}"):
        MiniLM(tmp_path).embed(["text"], queries=False)


def test_importing_loads_nothing_heavy() -> None:
    """Importing and constructing everything for retrieval loads neither torch nor FAISS nor transformers."""
    program = (
        "import sys; from serving.retrieval import embedder, endpoint_embedder, index, remote, searcher, services; "
        "embedder.MiniLM(); "
        "print([name for name in ('torch', 'faiss', 'transformers', 'bm25s') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env={"PYTHONPATH": ".:protos"}, capture_output=True, check=True
    )

    assert done.stdout.strip() == b"[]"


def test_a_query_has_the_same_vector_in_any_company(embedder: MiniLM) -> None:
    """To the last bit, though it is padded to the longest of its batch."""
    queries = ["Who?", "Who makes honey?", "Which river runs past the museum of the king of the bees?", "red " * 40]
    together = embedder.embed(queries, queries=True)
    for query, vector in zip(queries, together, strict=True):
        assert np.array_equal(embedder.embed([query], queries=True)[0], vector)
