import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from router.errors import BadCorpus, BadIndex
from serving.retrieval.digest import sha256_of
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.index import BATCH, Index, build_index
from serving.retrieval.manifest import Manifest, read_manifest

WriteCorpus = Callable[[Sequence[Mapping[str, str]]], Path]

QUERIES = ["Which pet hunts mice?", "the red planet", "Who makes honey?", "largest creature ever"]
NEAREST = ["cat", "mars", "bee", "whale"]


class OtherEmbedder:
    """As large as MiniLM, and of another name."""

    identity = "other"
    dimension = 384

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        raise AssertionError("not to be asked")


def ids(index: Index, embedder: MiniLM, queries: Sequence[str], top_k: int) -> list[list[str]]:
    found = index.search(embedder.embed(queries, queries=True), queries, top_k)
    return [[passage.id for passage in passages] for passages in found]


def test_the_nearest_passage_comes_first(index: Index, embedder: MiniLM) -> None:
    """Passages come back whole, best first, with cosines as scores."""
    found = index.search(embedder.embed(QUERIES, queries=True), QUERIES, 2)

    assert [passages[0].id for passages in found] == NEAREST
    assert found[1][0].title == "Mars"
    assert found[1][0].text == "Mars is the fourth planet from the Sun and looks red."
    assert all(1 > first.score > second.score for first, second in found)


def test_a_batch_finds_what_its_queries_find_alone(index: Index, embedder: MiniLM) -> None:
    """Neither the other queries of a batch nor a larger `top_k` change what a query finds."""
    alone = [ids(index, embedder, [query], 2)[0] for query in QUERIES]

    assert ids(index, embedder, QUERIES, 2) == alone
    assert [found[:2] for found in ids(index, embedder, QUERIES, 5)] == alone


def test_more_than_there_is_gives_all_there_is(index: Index, embedder: MiniLM) -> None:
    """A `top_k` above the size of the index is no error."""
    assert sorted(ids(index, embedder, ["anything"], 100)[0]) == ["bee", "cat", "mars", "whale", "zx81"]


def test_word_statistics_find_names(animals: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """With BM25 beside the vectors, an exact name and a paraphrase both come first; words of no passage do no harm."""
    assert build_index(animals, tmp_path / "index", embedder, lexical=True).lexical
    index = Index.open(tmp_path / "index", embedder, verify=True)

    assert index.lexical is not None
    assert [[hit.row for hit in hits] for hits in index.lexical.search(["", "qqq", "zx81"], 5)] == [[], [], [3]]
    assert [found[0] for found in ids(index, embedder, ["ZX81", *QUERIES, "??"], 1)][:5] == ["zx81", *NEAREST]


def test_the_manifest_tells_what_the_folder_holds(index_folder: Path, animals: Path, embedder: MiniLM) -> None:
    """Embedder, dimension, corpus hash and every file with size and hash."""
    manifest = read_manifest(index_folder)

    assert (manifest.embedder, manifest.dimension) == (embedder.identity, 384)
    assert (manifest.passages, manifest.lexical, manifest.metric) == (5, False, "inner_product")
    assert manifest.corpus_sha256 == sha256_of(animals)
    assert set(manifest.files) == {"passages.jsonl", "offsets.npy", "dense.faiss"}
    assert manifest.files["passages.jsonl"].sha256 == sha256_of(index_folder / "passages.jsonl")


def test_progress_is_told_after_every_batch(write_corpus: WriteCorpus, tmp_path: Path, embedder: MiniLM) -> None:
    """`progress` gets what is done and the whole."""
    corpus = write_corpus([{"id": str(number), "text": "word"} for number in range(BATCH + 1)])
    told: list[tuple[int, int]] = []

    build_index(corpus, tmp_path / "index", embedder, progress=lambda done, total: told.append((done, total)))

    assert told == [(BATCH, BATCH + 1), (BATCH + 1, BATCH + 1)]


def damaged(folder: Path, change: Callable[[Manifest], Manifest]) -> None:
    manifest = change(read_manifest(folder))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def test_a_folder_without_a_manifest_is_refused(index_folder: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """So is a folder that does not exist."""
    (index_folder / "manifest.json").unlink()

    for folder in (index_folder, tmp_path / "absent"):
        with pytest.raises(BadIndex, match=f"{folder.name}: no index here, or one whose build did not finish"):
            Index.open(folder, embedder)


def test_a_damaged_manifest_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """Half a manifest is not read as a manifest."""
    path = index_folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:80])

    with pytest.raises(BadIndex, match=r"manifest\.json: damaged"):
        Index.open(index_folder, embedder)


def test_a_missing_file_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """The message names the file."""
    (index_folder / "offsets.npy").unlink()

    with pytest.raises(BadIndex, match=r"offsets\.npy: missing"):
        Index.open(index_folder, embedder)


def test_a_cut_file_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """A file of another size is not read."""
    os.truncate(index_folder / "dense.faiss", 1000)

    with pytest.raises(BadIndex, match=r"dense\.faiss: 1000 bytes where the manifest says"):
        Index.open(index_folder, embedder)


def test_verifying_finds_an_altered_byte(index_folder: Path, embedder: MiniLM) -> None:
    """The size alone does not show it; `verify` reads the contents."""
    path = index_folder / "passages.jsonl"
    path.write_bytes(path.read_bytes().replace(b"Mars", b"Moon"))

    Index.open(index_folder, embedder)
    with pytest.raises(BadIndex, match=r"passages\.jsonl: altered"):
        Index.open(index_folder, embedder, verify=True)


def test_another_embedder_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """Vectors of two embedders cannot be compared, also where their dimension is equal."""
    with pytest.raises(BadIndex, match=r"built with the embedder all-MiniLM-L6-v2@\w+ .*, opened with other "):
        Index.open(index_folder, OtherEmbedder())

    damaged(index_folder, lambda manifest: msgspec.structs.replace(manifest, dimension=768))
    with pytest.raises(BadIndex, match=r"dimension 768.*dimension 384"):
        Index.open(index_folder, embedder)


def test_a_newer_format_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """Whatever else it holds, a newer manifest asks for a newer version."""
    (index_folder / "manifest.json").write_text(json.dumps({"format": 2, "all": "new"}))

    with pytest.raises(BadIndex, match="format 2, but this version of rolegate reads up to 1; upgrade"):
        Index.open(index_folder, embedder)


def test_files_of_two_indexes_are_refused(index_folder: Path, embedder: MiniLM) -> None:
    """A manifest that counts other passages than the files hold is not believed."""
    damaged(index_folder, lambda manifest: msgspec.structs.replace(manifest, passages=6))

    with pytest.raises(BadIndex, match="disagree on the number of passages"):
        Index.open(index_folder, embedder)


def test_a_finished_index_is_never_overwritten(index_folder: Path, animals: Path, embedder: MiniLM) -> None:
    """Building into a folder that holds something is refused before any work."""
    with pytest.raises(BadIndex, match="already exists"):
        build_index(animals, index_folder, OtherEmbedder())

    assert Index.open(index_folder, embedder, verify=True).manifest.passages == 5


def test_a_bad_row_is_found_before_anything_is_embedded(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    """A mistake in the last row costs no embedding and leaves nothing behind."""
    corpus = write_corpus([{"id": "a", "text": "good"}, {"id": "b", "text": ""}])

    with pytest.raises(BadCorpus, match=r"corpus\.jsonl:2: text is empty"):
        build_index(corpus, tmp_path / "index", OtherEmbedder())

    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
import numpy as np
from serving.retrieval.index import BATCH, build_index

class Killed:
    identity, dimension, calls = "killed", 4, 0

    def embed(self, texts, *, queries):
        self.calls += 1
        if self.calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.ones((len(texts), 4), dtype=np.float32)

build_index(Path(sys.argv[1]), Path(sys.argv[2]), Killed())
"""


def test_a_killed_build_leaves_nothing_that_can_be_opened(
    write_corpus: WriteCorpus, tmp_path: Path, embedder: MiniLM
) -> None:
    """After SIGKILL in the middle the folder does not exist, no folder opens, and building again works."""
    corpus = write_corpus([{"id": str(number), "text": "word"} for number in range(BATCH + 1)])
    out = tmp_path / "index"
    root = Path(__file__).parents[3]

    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BUILD, str(corpus), str(out)],
        cwd=root,
        env={"PYTHONPATH": "protos"},
        check=False,
    )

    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    left_over = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(left_over) == 1
    for folder in (out, *left_over):
        with pytest.raises(BadIndex, match="no index here, or one whose build did not finish"):
            Index.open(folder, embedder)
    assert build_index(corpus, out, embedder).passages == BATCH + 1
