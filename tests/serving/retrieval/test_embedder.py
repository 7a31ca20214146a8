import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from router.errors import BadConfig
from serving.retrieval.embedder import MiniLM


def test_vectors_are_unit_float32(embedder: MiniLM) -> None:
    """(batch, 384) float32, each row of length 1; no texts give no rows."""
    vectors = embedder.embed(["a cat", "a planet"], queries=True)

    assert vectors.shape == (2, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([], queries=False).shape == (0, 384)


def test_meaning_decides_the_distance(embedder: MiniLM) -> None:
    """A text is nearer to a paraphrase than to something else."""
    kitten, cat, rocket = embedder.embed(["a kitten plays", "a young cat has fun", "a rocket engine"], queries=False)

    assert kitten @ cat > kitten @ rocket


def test_other_weights_are_refused(tmp_path: Path) -> None:
    """Weights with another hash are never loaded; the message names the file and says what to do."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"something else")

    with pytest.raises(BadConfig, match=r"model\.safetensors: not the official weights.*Reinstall") as raised:
        MiniLM(tmp_path).embed(["text"], queries=False)

    assert str(weights) in str(raised.value)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    """A folder without weights is named."""
    with pytest.raises(BadConfig, match=r"model\.safetensors: cannot be read"):
        MiniLM(tmp_path).embed(["text"], queries=False)


def test_importing_loads_nothing_heavy() -> None:
    """Importing and constructing everything for retrieval loads neither torch nor FAISS nor transformers."""
    program = (
        "import sys; from serving.retrieval import embedder, endpoint_embedder, grpc_service, http_service, index, "
        "remote, searcher; embedder.MiniLM(); "
        "print([name for name in ('torch', 'faiss', 'transformers', 'bm25s') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env={"PYTHONPATH": "protos"}, capture_output=True, check=True
    )

    assert done.stdout.strip() == b"[]"


def test_a_query_has_the_same_vector_in_any_company(embedder: MiniLM) -> None:
    """To the last bit, though it is padded to the longest of its batch."""
    queries = ["Who?", "Who makes honey?", "Which river runs past the museum of the king of the bees?", "red " * 40]
    together = embedder.embed(queries, queries=True)
    for query, vector in zip(queries, together, strict=True):
        assert np.array_equal(embedder.embed([query], queries=True)[0], vector)
