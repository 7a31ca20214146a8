"""`rolegate documents` at a running gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Ended, Rolegate
from tests.serving.uploads.world import World, archive, world_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path) as world, world.running():
        yield world


async def test_documents_are_uploaded_listed_and_deleted(
    world: World, rolegate: Rolegate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLEGATE_API_KEY", world.keys["acme"])

    async def run(*arguments: str) -> Ended:
        address = ("--address", world.callers["acme"].address)
        return await asyncio.to_thread(rolegate, "documents", *arguments, *address)

    (tmp_path / "a.txt").write_bytes(archive("Amaranth"))
    (tmp_path / "empty.txt").write_bytes(b"")
    uploaded = await run("upload", str(tmp_path / "a.txt"))
    assert uploaded[:2] == (0, "a.txt: stored\n")
    waited = await run("upload", str(tmp_path / "a.txt"), str(tmp_path / "empty.txt"), "--wait")
    assert waited.status == 1  # one could not be read
    assert waited.out.splitlines()[-2:] == [
        "idle: 1 document, 1 passage, up to date",
        "empty.txt: contains no text; leave it out.",
    ]
    named = await run("upload", str(tmp_path / "a.txt"), "--name", "safe/b.txt", "--wait", "--json")
    assert json.loads(named.out.splitlines()[0])["state"] == "DOCUMENT_STATE_INDEXED"
    listed = await run("list")
    rows = [line.split()[:2] for line in listed.out.splitlines()]
    for row in (["a.txt", "indexed"], ["empty.txt", "skipped"], ["safe/b.txt", "indexed"]):
        assert row in rows
    assert (await run("delete", "safe/b.txt", "empty.txt")).out == (
        "safe/b.txt: deleted\nempty.txt: deleted\n"
    )
    missing = await run("delete", "safe/b.txt")
    assert missing.status == 1
    assert "there is no document of this name" in missing.err
    names = [json.loads(line)["name"] for line in (await run("list", "--json")).out.splitlines()]
    assert names == ["a.txt"]
    refused = await run("upload", "a.txt", "b.txt", "--name", "c.txt")
    assert "--name: several files cannot have the same name" in refused.err
    absent = await run("upload", str(tmp_path / "absent.txt"))
    assert (absent.status, "absent.txt" in absent.err) == (1, True)
