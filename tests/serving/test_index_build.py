"""`rolegate index build` over folders with damaged and hostile files."""

import io
import json
import os
import resource
import socket
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import docx
import pytest

from serving.cli.main import main
from serving.config.config import EmbedderConfig
from tests import embedding
from tests.conftest import Rolegate
from tests.scripted_gateway import ROOT
from tests.serving.documents.conftest import pdf

Build = Callable[[], dict[str, Any]]


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a note, below the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "note.txt").write_text("The boiler was serviced in March.")
    return tmp_path / "docs"


@pytest.fixture
def build_command(docs: Path, word_embedder: EmbedderConfig) -> list[str]:
    """Command that builds the index with an embedder of words."""
    return ["index", "build", *embedding.options(word_embedder), str(docs), "--out", "index"]


@pytest.fixture
def build(build_command: list[str], capsys: pytest.CaptureFixture[str]) -> Build:
    """Build the index and return the command's output."""

    def run() -> dict[str, Any]:
        assert main([*build_command, "--json"]) == 0
        output: dict[str, Any] = json.loads(capsys.readouterr().out)
        return output

    return run


def write_rows(path: Path, *ids: str) -> None:
    path.write_text(
        "".join(
            json.dumps({"id": row_id, "title": "", "text": f"About {row_id}."}) + "\n"
            for row_id in ids
        )
    )


@contextmanager
def files_of_at_most(room: int) -> Iterator[None]:
    """Limit the files of this process to `room` bytes; larger ones fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [20_000, 501 * embedding.DIMENSION * 4 + 20])
def test_a_full_disk_is_reported_with_the_folder_and_the_remedy(
    docs: Path, room: int, rolegate: Rolegate, build_command: list[str]
) -> None:
    """The disk is full at the passages, or at the very end of the vectors."""
    write_rows(docs / "rows.jsonl", *(f"row-{number}" for number in range(500)))
    # The reader's modules are compiled here: with the limit, a cut .pyc would stay for other tests
    rolegate(*build_command[:-1], "elsewhere")
    with files_of_at_most(room):
        ended = rolegate(*build_command)
    assert ended.status == 1
    assert (
        "rolegate: index: cannot be written (File too large); free space on its disk, and build "
        "the index again" in ended.err
    )


def test_a_repeated_id_leaves_out_its_file_only(docs: Path, build: Build) -> None:
    """The id is repeated in one file or in two; the line is named."""
    write_rows(docs / "a.jsonl", "ada", "bob")
    write_rows(docs / "b.jsonl", "eve", "ada")
    write_rows(docs / "c.jsonl", "eve", "tom", "eve")
    write_rows(docs / "d.jsonl", "eve")

    built = build()

    assert (built["documents"], built["passages"]) == (3, 4)
    advice = "give each row a different id."
    assert built["skipped"] == [
        {
            "name": "docs/b.jsonl",
            "error": f"{docs}/b.jsonl:2: the id 'ada' is also the id of docs/a.jsonl#ada; {advice}",
        },
        {
            "name": "docs/c.jsonl",
            "error": f"{docs}/c.jsonl:3: the id 'eve' is also the id of docs/c.jsonl#eve; {advice}",
        },
    ]


def test_links_out_of_a_folder_are_not_followed(
    docs: Path, build: Build, build_command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Links to folders are not followed either.

    All are reported, and pipes and sockets do not block the build.
    """
    (docs.parent / "secret.txt").write_text("The password is swordfish.")
    (docs / "a.txt").symlink_to("/etc/passwd")
    (docs / "b.txt").symlink_to("../secret.txt")
    (docs / "c").symlink_to(docs.parent)
    (docs / "loop").symlink_to(".")
    os.mkfifo(docs / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("docs/socket.txt")
        built = build()

    assert (built["documents"], built["passages"], built["passed_over"]) == (1, 1, 2)
    others = [f"{docs}/{name}.txt" for name in ("pipe", "socket")]
    assert sorted(built["passed_over_files"]) == others
    links = [
        f"{docs}/{name}: a link to outside {docs}, or to no file; name its target to index it."
        for name in ("a.txt", "b.txt", "c", "loop")
    ]
    assert built["links"] == links
    assert main([*build_command, "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    messages = [f"not followed: {link}" for link in links] + [
        f"format not supported: {path}" for path in others
    ]
    assert set(messages) <= set(lines)


def test_a_path_that_is_too_long_is_named(
    docs: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses paths of more than 4,096 bytes; files above that depth are read."""
    monkeypatch.chdir(docs)
    for _ in range(25):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    Path("deep.txt").write_text("Nobody finds me.")
    monkeypatch.chdir(docs.parent)

    built = build()

    assert (built["documents"], built["passages"]) == (1, 1)
    assert built["links"]
    assert all(named.endswith(": File name too long.") for named in built["links"])


def test_names_that_are_not_utf8_are_shown_escaped(
    docs: Path, build: Build, word_embedder: EmbedderConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are escaped in the index, in errors of the file, and if they are given as arguments."""
    folder = Path(os.fsdecode(b"caf\xe9"))
    (docs / folder).mkdir()
    (docs / folder / os.fsdecode(b"\xfcber.txt")).write_text("The bridge is closed.")
    (docs / folder / os.fsdecode(b"\xe4.jsonl")).write_text("{}")

    built = build()

    assert (built["documents"], built["skipped"][0]["name"]) == (2, r"docs/caf\xe9/\xe4.jsonl")
    assert built["skipped"][0]["error"].startswith(rf"{docs}/caf\xe9/\xe4.jsonl:1: ")
    assert build()["documents_read"] == 0
    lines = (docs.parent / "index" / "000001" / "passages.jsonl").read_text("utf-8").splitlines()
    (passage,) = (json.loads(line) for line in lines if "bridge" in line)
    name = r"docs/caf\xe9/\xfcber.txt"
    assert (passage["document"], passage["title"]) == (name, r"\xfcber")
    at = embedding.options(word_embedder)
    assert main(["index", "build", str(docs / folder), "--out", "another", *at]) == 0
    shown = capsys.readouterr().out
    assert r"caf\xe9/\xe4.jsonl:1: " in shown
    assert "1 document (1 read now, 1 skipped)" in shown


def deflated(block: bytes, times: int) -> bytes:
    """Return the zlib stream of a repeated block, which is compressed only once."""
    packer = zlib.compressobj(9)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    header, body = packed[:2], packed[2:]
    checksum = 1
    for _ in range(times):
        checksum = zlib.adler32(block, checksum)
    return header + body * times + b"\x03\x00" + checksum.to_bytes(4, "big")


def test_a_pdf_that_unpacks_to_gigabytes_is_left_out(docs: Path, build: Build) -> None:
    """The file is named; all others are indexed."""
    shown = b"BT /F1 12 Tf 50 700 Td (bomb) Tj ET\n" * 10_000
    stream = deflated(shown, (480 << 20) // len(shown))
    pdf(docs / "bomb.pdf", "bomb")
    path = docs / "bomb.pdf"
    written = (docs / "bomb.pdf").read_bytes()
    head, _, rest = written.partition(b"<< /Length")
    packed = b"<< /Filter /FlateDecode /Length %d >> stream\n%s\nendstream" % (len(stream), stream)
    path.write_bytes(head + packed + rest.partition(b"endstream")[2])
    (docs / "other.md").write_text("# Pump\n\nThe pump was serviced in May.")

    built = build()

    assert path.stat().st_size < 2 << 20
    assert (built["documents"], built["passages"]) == (2, 2)
    (skipped,) = built["skipped"]
    assert skipped["name"] == "docs/bomb.pdf"
    assert "more than 1024 MiB of memory; split it, or leave it out." in skipped["error"]


@pytest.fixture
def model() -> Iterator[str]:
    """The base URL of a model that reads by rules."""
    command = [sys.executable, "-m", "tests.reading_model"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def test_a_citation_of_a_row_names_its_file(
    docs: Path, model: str, word_embedder: EmbedderConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row's id is named, too."""
    row = {"id": "r1", "title": "Gate", "text": "The gate code is changed on the first Monday."}
    (docs / "rows.jsonl").write_text(json.dumps(row) + "\n")
    names = [
        option
        for role in ("backbone", "executor", "answerer")
        for option in (f"--{role}", "reading-model")
    ]
    init = [
        "init",
        "--preset",
        "local",
        "--base-url",
        model,
        *names,
        "--documents",
        "docs",
        "--yes",
    ]
    assert main(init) == 0
    config = Path("rolegate.toml")
    config.write_text(config.read_text() + embedding.keys(word_embedder))
    assert main(["index", "build"]) == 0
    assert main(["ask", "When is the gate code changed?"]) == 0

    assert "(docs/rows.jsonl#r1)" in " ".join(capsys.readouterr().out.split())


def test_files_that_are_not_read_are_counted_in_the_manifest(docs: Path, build: Build) -> None:
    """They are counted by suffix, most frequent first: kinds without a reader, and files that fail.

    The counts follow the folder, even if no document changes.
    """

    def counts() -> dict[str, int]:
        build()
        counted: dict[str, int] = json.loads(
            (docs.parent / "index" / "manifest.json").read_bytes()
        )["files_not_read"]
        return counted

    for name in ("a.xlsx", "b.XLSX", "c.pptx", "broken.pdf"):
        (docs / name).write_bytes(b"\0")
    (docs / "program").write_bytes(b"\x7fELF\0\0")
    assert list(counts().items()) == [(".xlsx", 2), (".pdf", 1), (".pptx", 1), ("no suffix", 1)]
    (docs / "a.xlsx").unlink()
    (docs / "broken.pdf").unlink()
    assert list(counts().items()) == [(".pptx", 1), (".xlsx", 1), ("no suffix", 1)]


def test_unread_files_are_reported(
    docs: Path,
    build: Build,
    build_command: list[str],
    word_embedder: EmbedderConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are reported by file and by kind: in JSON, on the terminal, in the next build and by
    `check`.
    """
    (docs / "page.html").write_text("<p>Bees.<script>lost")
    (docs / "bad.html").write_bytes(b"<meta charset=utf-8><p>caf\xe9 au lait")
    (docs / "broken.pdf").write_bytes(b"%PDF-1.7 and no more")
    for name in ("a.zip", "b.zip", "c.mp4"):
        (docs / name).write_bytes(b"\0")
    counts = {".zip": 2, ".mp4": 1, ".pdf": 1}
    in_part = [
        {"name": "docs/bad.html", "not_read": "1 characters that cannot be decoded"},
        {"name": "docs/page.html", "not_read": "everything after an unclosed <script> in line 1"},
    ]
    for _ in range(2):
        built = build()
        assert (built["files_not_read"], built["read_in_part"]) == (counts, in_part)
        (docs / "note.txt").write_text("The boiler was replaced.")

    assert main(build_command) == 0
    messages = [
        *(f"read in part: {file['name']}: not read: {file['not_read']}" for file in in_part),
        "4 files not read: .zip 2, .mp4 1, .pdf 1",
    ]
    lines = capsys.readouterr().out.splitlines()
    assert set(messages) <= set(lines)
    assert any(line.startswith("skipped: docs/broken.pdf: is damaged") for line in lines)

    Path("prompt.txt").write_text("Answer.")
    roles = ("delegation", "execution", "answer")
    role = (
        '[roles.{}]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nprompt = "prompt.txt"\n'
        "max_tokens = 256\n"
    )
    Path("config.toml").write_text(
        "".join(map(role.format, roles))
        + '[retrieval]\nindex = "index"\n'
        + f"[retrieval.embedder]\n{embedding.keys(word_embedder)}"
    )
    assert main(["check", "--config", "config.toml"]) == 0
    assert {f"index: {line}" for line in messages} <= set(capsys.readouterr().out.splitlines())
    assert main(["check", "--config", "config.toml", "--json"]) == 0
    index = json.loads(capsys.readouterr().out)["index"]
    assert (index["files_not_read"], index["read_in_part"]) == (counts, in_part)
    assert [file["name"] for file in index["skipped"]] == ["docs/broken.pdf"]


def test_ray_is_refused_with_an_embedder_at_an_endpoint(
    docs: Path, build_command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*build_command, "--ray", "local"]) == 1
    assert "the config has another one; leave --ray out" in capsys.readouterr().err
    assert not (docs.parent / "index").exists()


def test_hostile_files_are_named_and_the_others_are_read(docs: Path, build: Build) -> None:
    """The files are nested without end, unpack without end, or contain nothing but the beginnings
    of markup.
    """
    entities = "".join(
        f'<!ENTITY {name} "{f"&{inner};" * 10}">' for inner, name in pairwise("abcdefgh")
    )
    bomb = f'<!DOCTYPE x [<!ENTITY a "{"x" * 100}">{entities}]><x>&h;</x>'
    for name, xml in {
        "bomb.docx": bomb,
        "deep.docx": "<x>" * 10_000,
        "large.docx": " " * (33 << 20),
    }.items():
        saved = io.BytesIO()
        docx.Document().save(saved)
        with (
            zipfile.ZipFile(saved) as source,
            zipfile.ZipFile(docs / name, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for part in source.namelist():
                packed.writestr(part, xml if part == "word/document.xml" else source.read(part))
    for name, text in {
        "deep.html": "<div>" * 100_000,
        "tables.html": "<table><tr><td>" * 100_000,
        "lists.html": "<ul><li>" * 100_000,
        "quotes.md": ">" * 100_000 + "x",
    }.items():
        (docs / name).write_text(text)
    for name, text in {
        "less.html": "<" * 2_000,
        "links.md": "[" * 2_000,
        "less.md": "<" * 2_000,
    }.items():
        (docs / name).write_text(text)

    built = build()

    assert built["documents"] == 4
    assert {
        file["name"].removeprefix("docs/"): file["error"].partition("; ")[2]
        for file in built["skipped"]
    } == {
        **dict.fromkeys(("bomb.docx", "deep.docx"), "repair it, or leave it out."),
        "large.docx": "split it, or leave it out.",
        **dict.fromkeys(
            ("deep.html", "lists.html", "quotes.md", "tables.html"),
            "save it as plain text, or leave it out.",
        ),
    }
