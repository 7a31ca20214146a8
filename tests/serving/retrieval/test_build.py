"""Building an index: updates, and builds after damage, after a kill and during another build."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import BadCorpus, BadDocument, BadIndex, DuplicateId, UpstreamRefused
from serving.documents.metadata import StoredPassage
from serving.retrieval.build import BATCH, Built, build_index
from serving.retrieval.embedder import Vectors
from serving.retrieval.index import Index
from serving.retrieval.lexical import LEXICAL
from serving.retrieval.manifest import MANIFEST
from serving.retrieval.opening import Check, stoppable
from serving.retrieval.passages import PassageStore, PassageWriter

ROOT = Path(__file__).parents[3]


class Counting:
    """An embedder with vectors made of the texts' hashes, which records all texts."""

    dimension = 8
    max_tokens = 64

    def __init__(self, identity: str = "counting") -> None:
        self.identity = identity
        self.texts: list[str] = []

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        self.texts += texts
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> Vectors:
        raw = np.frombuffer((text.encode() * 32)[:32], dtype=np.uint8)[:8].astype(np.float32) + len(
            text
        )
        return np.asarray(raw / np.linalg.norm(raw), dtype=np.float32)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder of three texts."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for name in ("ant", "bee", "cow"):
        (folder / f"{name}.txt").write_text(f"The {name} is an animal. It has legs.")
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file with one row more than a batch."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": str(row), "text": f"row {row}"}) + "\n" for row in range(BATCH + 1)
        )
    )
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of an index."""
    return tmp_path / "index"


def held(out: Path, embedder: Counting) -> list[str]:
    """Return the texts of an index; each has its right vector."""
    index = Index.open(out, embedder, verify=True)
    for row in range(len(index.passages)):
        passage = index.passages[row]
        assert index.dense.vectors(np.array([row]))[0] == pytest.approx(
            embedder.vector(f"{passage.title}\n{passage.text}")
        )
    return [index.passages[row].text for row in range(len(index.passages))]


def counts(built: Built) -> tuple[int, int, int, int]:
    return built.documents, built.documents_read, built.embedded, built.manifest.passages


def test_only_changes_are_read_and_embedded(documents: Path, out: Path) -> None:
    """Changed and new files are read, deleted ones are removed, and others are neither read nor
    embedded.
    """
    embedder = Counting()
    assert counts(build_index([documents], out, embedder)) == (3, 3, 3, 3)
    assert counts(build_index([documents], out, embedder)) == (3, 0, 0, 3)
    (documents / "bee.txt").write_text("The bee makes honey, and it can sting.")
    (documents / "cow.txt").unlink()
    (documents / "dog.txt").write_text("The dog barks.")
    embedder.texts.clear()
    built = build_index([documents], out, embedder)
    assert (*counts(built), built.manifest.generation) == (3, 2, 2, 3, "000002")
    read = ["The bee makes honey, and it can sting.", "The dog barks."]
    assert [text.partition("\n")[2] for text in embedder.texts] == read
    assert held(out, embedder) == ["The ant is an animal. It has legs.", *read]
    # Only touched: it is read, and every passage of it is known
    os.utime(documents / "ant.txt", (1, 1))
    assert counts(build_index([documents], out, embedder)) == (3, 1, 0, 3)


def test_only_the_generation_before_is_kept(documents: Path, out: Path) -> None:
    """A process that is opening the previous generation succeeds; older ones are removed."""
    for number in range(4):
        (documents / "ant.txt").write_text(f"Ant number {number}.")
        build_index([documents], out, Counting())
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "000003",
        "000004",
        "manifest.json",
    ]


def test_other_settings_rebuild_everything(documents: Path, out: Path) -> None:
    """With another embedder or passage length, no old vector is kept."""
    build_index([documents], out, Counting())
    assert counts(build_index([documents], out, Counting("another"))) == (3, 3, 3, 3)
    assert counts(build_index([documents], out, Counting("another"), chunk_tokens=5))[:2] == (3, 3)
    assert build_index(
        [documents], out, Counting("another"), chunk_tokens=5, lexical=True
    ).manifest.lexical


def test_word_statistics_of_another_version_are_counted_again(documents: Path, out: Path) -> None:
    """Such an index is refused until a build has counted again, which embeds nothing."""
    manifest = build_index([documents], out, Counting(), lexical=True).manifest
    files = {name.replace(LEXICAL, "lexical"): entry for name, entry in manifest.files.items()}
    (out / manifest.generation / LEXICAL).rename(out / manifest.generation / "lexical")
    (out / MANIFEST).write_bytes(
        msgspec.json.encode(msgspec.structs.replace(manifest, files=files))
    )
    with pytest.raises(
        BadIndex, match="by another version of rolegate; run `rolegate index build` again"
    ):
        Index.open(out, Counting())
    assert counts(build_index([documents], out, Counting(), lexical=True)) == (3, 0, 0, 3)
    lexical = Index.open(out, Counting()).lexical
    assert lexical is not None
    assert lexical.search(["bee"], 1)[0]


def test_documents_are_read_again_after_a_change_of_the_readers(documents: Path, out: Path) -> None:
    """Passages with unchanged text are not embedded again."""
    build_index([documents], out, Counting())
    manifest = json.loads((out / "manifest.json").read_bytes())
    del manifest["reading"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert counts(build_index([documents], out, Counting())) == (3, 3, 0, 3)
    assert counts(build_index([documents], out, Counting())) == (3, 0, 0, 3)


def test_files_that_cannot_be_read_are_named_and_skipped(documents: Path, out: Path) -> None:
    """The other files are indexed; the next build tries again, and makes no generation without
    changes.
    """
    embedder = Counting()
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7 and no more")
    (documents / "rows.jsonl").write_text('{"id": "1", "text": "good"}\n{"id": "2"}\n')
    built = build_index([documents], out, embedder)
    assert [entry.source.name for entry in built.skipped] == [
        "documents/broken.pdf",
        "documents/rows.jsonl",
    ]
    assert "rows.jsonl:2" in built.skipped[1].error
    assert built.documents == len(held(out, embedder)) == 3
    assert build_index([documents], out, embedder) == built._replace(documents_read=0, embedded=0)
    (documents / "rows.jsonl").write_text('{"id": "1", "text": "good"}\n')
    assert build_index([documents], out, embedder).documents == 4


def test_nothing_to_read_changes_nothing(documents: Path, out: Path, tmp_path: Path) -> None:
    """An unmounted folder does not empty an index, and a first build that fails embeds nothing."""
    embedder = Counting()
    empty = tmp_path / "empty"
    corpus = tmp_path / "corpus.jsonl"
    empty.mkdir()
    corpus.write_text('{"id": "a", "text": "good"}\n{"id": "b", "text": ""}\n')
    with pytest.raises(BadDocument, match="empty"):
        build_index([empty], out, embedder)
    with pytest.raises(BadCorpus, match=r"corpus\.jsonl:2: text is empty"):
        build_index([corpus], out, embedder)
    assert (embedder.texts, out.exists()) == ([], False)
    build_index([documents], out, embedder)
    with pytest.raises(BadDocument):
        build_index([empty], out, embedder)
    assert len(held(out, embedder)) == 3


def test_ids_are_unique_over_all_files(tmp_path: Path, out: Path) -> None:
    """The second file with an id is left out, in every build without changes."""
    embedder = Counting()
    places = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for place in places:
        shared = "c" if place.stem == "c" else "same"
        place.write_text(
            f'{{"id": "{place.stem}0", "text": "0"}}\n\n{{"id": "{shared}", "text": '
            f'"{place.stem}"}}\n'
        )
    built = build_index(places, out, embedder)
    assert [entry.error for entry in built.skipped] == [
        (
            f"{places[1]}:3: the id 'same' is also the id of a.jsonl#same; give each row a "
            "different id."
        )
    ]
    assert held(out, embedder) == ["0", "a", "0", "c"]
    assert build_index(places, out, embedder).manifest == built.manifest
    places[0].write_text('{"id": "a0", "text": "0"}\n')
    assert (build_index(places, out, embedder).skipped, held(out, embedder)) == (
        [],
        ["0", "0", "b", "0", "c"],
    )


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=12)
)
def test_a_file_is_left_out_exactly_where_it_repeats_an_id(
    tmp_path: Path, files: list[list[int]]
) -> None:
    """The repeated id is in the file, or in an earlier file that is not left out."""
    taken = set[str]()
    kept = list[str]()
    shutil.rmtree(tmp_path / "written", ignore_errors=True)
    (tmp_path / "written").mkdir()
    with PassageWriter(tmp_path / "written") as writer:
        for ids in ([str(number) for number in numbers] for numbers in files):
            alone = len(set(ids)) == len(ids) and not taken & set(ids)
            with (
                nullcontext()
                if alone
                else pytest.raises(DuplicateId, match=r"^f:\d+: the id '\d+' is also the id of")
            ):
                writer.write(
                    (f"f:{line}", StoredPassage(row_id, "", row_id))
                    for line, row_id in enumerate(ids, 1)
                )
            taken |= set(ids) if alone else set()
            kept += ids if alone else []
        writer.write([("f:1", StoredPassage("last", "", "last"))])
    store = PassageStore(tmp_path / "written")
    assert [store[row].id for row in range(len(store))] == [*kept, "last"]


@pytest.mark.parametrize(
    "name", ["manifest.json", "letter.txt", "2021/letter.txt", "202112/letter.txt"]
)
def test_an_unrelated_folder_is_left_alone(documents: Path, tmp_path: Path, name: str) -> None:
    """Folders with other manifests, or with numbers as names, are neither replaced nor removed."""
    other = tmp_path / "other" / name
    other.parent.mkdir(parents=True)
    other.write_text('{"name": "an app"}')
    with pytest.raises(
        BadIndex, match=f"exists and is not an index .it contains {name.partition('/')[0]}"
    ):
        build_index([documents], tmp_path / "other", Counting())
    assert other.read_text() == '{"name": "an app"}'


@pytest.mark.parametrize(
    "name", ["dense.faiss", "passages.jsonl", "offsets.npy", "documents.jsonl"]
)
@pytest.mark.parametrize("size", [0, 20, None])
def test_a_damaged_index_can_be_built_again(
    documents: Path, out: Path, name: str, size: int | None
) -> None:
    """Cut files and changed bytes are repaired, also if no document has changed."""
    embedder = Counting()
    path = out / "000001" / name
    build_index([documents], out, embedder)
    if size is not None:
        os.truncate(path, size)
    else:
        content = bytearray(path.read_bytes())
        content[-40:-32] = bytes(byte ^ 0xFF for byte in content[-40:-32])
        path.write_bytes(content)
    assert build_index([documents], out, embedder).embedded == 3
    assert len(held(out, embedder)) == 3
    (out / "manifest.json").write_bytes(b"")
    assert build_index([documents], out, embedder).documents_read == 3


class Stubborn(Counting):
    """An embedder that refuses one text."""

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        if any(text.endswith(f"row {BATCH}") for text in texts):
            raise UpstreamRefused("not this one", endpoint="e")
        return super().embed(texts, queries=queries)


def test_builds_that_always_fail_do_not_fill_the_disk(rows: Path, out: Path) -> None:
    """Each build reuses the vectors of the failed ones."""
    for _ in range(4):
        with pytest.raises(UpstreamRefused):
            build_index([rows], out, Stubborn())
    assert [path.stat().st_size for path in out.iterdir() if path.name != ".lock"] == [
        BATCH * (16 + 4 * 8)
    ]
    assert build_index([rows], out, Counting()).embedded == 1


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from serving.retrieval.build import build_index
from tests.serving.retrieval.test_build import Counting

class Killed(Counting):
    def embed(self, texts, *, queries):
        if self.texts:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(texts, queries=queries)

build_index([Path(sys.argv[1])], Path(sys.argv[2]), Killed())
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_a_killed_build_is_not_served_and_is_resumed(rows: Path, out: Path, damaged: bool) -> None:
    """After SIGKILL nothing can be opened, and the next build embeds only the
    remaining passages.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"}
    killed = [sys.executable, "-c", KILLED_BUILD, str(rows), str(out)]
    assert (
        subprocess.run(killed, cwd=ROOT, env=environment, check=False).returncode == -signal.SIGKILL
    )
    embedder = Counting()
    for folder in (out, out / ".building"):
        with pytest.raises(BadIndex, match="contains no finished index"):
            Index.open(folder, embedder)
    (embedded,) = out.glob(".embedded-*")
    record = embedded.stat().st_size // BATCH
    if damaged:
        with embedded.open("r+b") as file:
            file.seek(100 * record)
            file.write(bytes(record))
            file.truncate(120 * record + 5)
    assert build_index([rows], out, embedder).embedded == BATCH + 1 - (100 if damaged else BATCH)
    assert len(held(out, embedder)) == BATCH + 1
    assert sorted(path.name for path in out.iterdir()) == [".lock", "000001", "manifest.json"]


async def test_a_build_ends_when_its_caller_is_cancelled(documents: Path, out: Path) -> None:
    """A build that waits for another one ends, too."""
    waiting = asyncio.Event()
    build_index([documents], out, Counting())
    loop = asyncio.get_running_loop()

    def work(check: Check) -> Built:
        def progress(_stage: str, _done: int, _total: int) -> None:
            loop.call_soon_threadsafe(waiting.set)
            check()

        return build_index([documents], out, Counting(), progress=progress)

    with (out / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BadIndex, match="another build of this index is running"):
            build_index([documents], out, Counting(), wait=False)
        task = asyncio.create_task(stoppable(work))
        async with asyncio.timeout(30):
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def test_the_index_is_not_indexed(documents: Path) -> None:
    """An index inside the folder of its documents is not read."""
    embedder = Counting()
    build_index([documents], documents / "index", embedder)
    built = build_index([documents], documents / "index", embedder)
    assert (counts(built), built.manifest.files_not_read) == ((3, 0, 0, 3), {})


def test_progress_counts_documents_and_passages(rows: Path, out: Path) -> None:
    """Progress has the number done and the total."""
    steps: list[tuple[str, int, int]] = []
    build_index([rows], out, Counting(), progress=lambda *step: steps.append(step))
    assert steps == [
        ("reading", 0, 1),
        ("reading", 1, 1),
        ("embedding", BATCH, BATCH + 1),
        ("embedding", BATCH + 1, BATCH + 1),
    ]
