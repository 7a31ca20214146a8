import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from router.errors import BadIndex
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.index import Index
from serving.retrieval.manifest import Manifest, read_manifest

WriteCorpus = Callable[[Sequence[Mapping[str, str]]], Path]

QUERIES = ["Which pet hunts mice?", "the red planet", "Who makes honey?", "largest creature ever"]
NEAREST = ["cat", "mars", "bee", "whale"]


class OtherEmbedder:
    """As large as MiniLM, and of another name."""

    identity = "other"
    dimension = 384
    max_tokens = 256

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

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
    assert build_index([animals], tmp_path / "index", embedder, lexical=True).manifest.lexical
    index = Index.open(tmp_path / "index", embedder, verify=True)

    assert index.lexical is not None
    assert [[hit.row for hit in hits] for hits in index.lexical.search(["", "qqq", "zx81"], 5)] == [[], [], [3]]
    assert [found[0] for found in ids(index, embedder, ["ZX81", *QUERIES, "??"], 1)][:5] == ["zx81", *NEAREST]


def test_the_manifest_tells_what_the_folder_holds(index_folder: Path, embedder: MiniLM) -> None:
    """Embedder, dimension, corpus hash and every file with size and hash."""
    manifest = read_manifest(index_folder)

    assert (manifest.embedder, manifest.dimension) == (embedder.identity, 384)
    assert (manifest.passages, manifest.lexical, manifest.metric) == (5, False, "inner_product")
    assert (manifest.generation, manifest.chunk_tokens) == ("000001", 200)
    assert set(manifest.files) == {"passages.jsonl", "offsets.npy", "dense.faiss", "documents.jsonl"}
    assert manifest.corpus_sha256 == manifest.files["passages.jsonl"].sha256


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
    (index_folder / "000001" / "offsets.npy").unlink()

    with pytest.raises(BadIndex, match=r"offsets\.npy: missing"):
        Index.open(index_folder, embedder)


def test_a_cut_file_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """A file of another size is not read."""
    os.truncate(index_folder / "000001" / "dense.faiss", 1000)

    with pytest.raises(BadIndex, match=r"dense\.faiss: 1000 bytes where the manifest says"):
        Index.open(index_folder, embedder)


def test_verifying_finds_an_altered_byte(index_folder: Path, embedder: MiniLM) -> None:
    """The size alone does not show it; `verify` reads the contents."""
    path = index_folder / "000001" / "passages.jsonl"
    path.write_bytes(path.read_bytes().replace(b"Mars", b"Moon"))

    Index.open(index_folder, embedder)
    with pytest.raises(BadIndex, match=r"passages\.jsonl: altered"):
        Index.open(index_folder, embedder, verify=True)


def test_a_damaged_passage_is_named(index_folder: Path, embedder: MiniLM) -> None:
    """Where it is found, with its file and with what to do."""
    path = index_folder / "000001" / "passages.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"', b"\xff\xff"))

    index = Index.open(index_folder, embedder)
    with pytest.raises(BadIndex, match=r"000001/passages\.jsonl: damaged \(.*\); build the index again"):
        ids(index, embedder, QUERIES, 1)


def test_another_embedder_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """Vectors of two embedders cannot be compared, also where their dimension is equal."""
    with pytest.raises(BadIndex, match=r"built with the embedder all-MiniLM-L6-v2@\w+ .*, opened with other "):
        Index.open(index_folder, OtherEmbedder())

    damaged(index_folder, lambda manifest: msgspec.structs.replace(manifest, dimension=768))
    with pytest.raises(BadIndex, match=r"dimension 768.*dimension 384"):
        Index.open(index_folder, embedder)


def test_another_format_is_refused(index_folder: Path, embedder: MiniLM) -> None:
    """Whatever else it holds, a newer manifest asks for a newer version, and an older one for another build."""
    (index_folder / "manifest.json").write_text(json.dumps({"format": 3, "all": "new"}))
    with pytest.raises(BadIndex, match="format 3, but this version of rolegate reads up to 2; upgrade"):
        Index.open(index_folder, embedder)

    (index_folder / "manifest.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(BadIndex, match="format 1, of an older version of rolegate; build the index again"):
        Index.open(index_folder, embedder)


def test_files_of_two_indexes_are_refused(index_folder: Path, embedder: MiniLM) -> None:
    """A manifest that counts other passages than the files hold is not believed."""
    damaged(index_folder, lambda manifest: msgspec.structs.replace(manifest, passages=6))

    with pytest.raises(BadIndex, match="disagree on the number of passages"):
        Index.open(index_folder, embedder)


def test_copies_of_a_text_do_not_crowd_out_others(write_corpus: WriteCorpus, tmp_path: Path, embedder: MiniLM) -> None:
    """Five copies of the nearest text are found once, and the next best come after it."""
    copies = [{"id": f"copy {number}", "title": "Cat", "text": "The cat hunts mice."} for number in range(5)]
    corpus = write_corpus([*copies, {"id": "dog", "title": "Dog", "text": "The dog hunts foxes."}])
    build_index([corpus], tmp_path / "index", embedder)

    assert ids(Index.open(tmp_path / "index", embedder), embedder, ["Who hunts mice?"], 3) == [["copy 0", "dog"]]
