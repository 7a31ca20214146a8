"""The log: records are read back, even if its files are damaged."""

import asyncio
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import StoreFailed, StoreInUse
from router.store.log import (
    SEGMENT_BYTES,
    Position,
    RunLog,
    Segment,
    number_of,
    read_all,
    read_segment,
    segments,
)
from tests.router.store.disks import filled, no_file_beyond, put, small_disk

Record = tuple[int, int, bytes]
"""Run, number and payload of a record."""


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[RunLog]:
    """An open log."""
    with RunLog.open(tmp_path / "log") as log:
        log.start()
        yield log


def stored_records(folder: Path) -> list[Record]:
    """Records of all segments."""
    return [
        (frame.run, frame.number, frame.payload)
        for segment in read_all(folder)
        for frame in segment.frames
    ]


@settings(max_examples=50)
@given(
    records=st.lists(
        st.tuples(
            st.integers(1, 2**64 - 1),
            st.integers(0, 2**32 - 1),
            st.binary(max_size=300),
            st.booleans(),
        )
        | st.none()
    )
)
async def test_records_come_back_in_order(
    records: list[tuple[int, int, bytes, bool] | None],
) -> None:
    """They span all segments and include deferred records. Each knows the position after it."""
    with tempfile.TemporaryDirectory() as folder, RunLog.open(Path(folder)) as log:
        log.start()
        places = []
        for record in records:
            if record is None:
                log.start()
            else:
                log.append(*record[:3], later=record[3])
                places.append(log.end)
        await log.synced()
        read = list(read_all(Path(folder)))
    assert [
        (frame.run, frame.number, frame.payload) for segment in read for frame in segment.frames
    ] == [record[:3] for record in records if record]
    assert [frame.end for segment in read for frame in segment.frames] == places == sorted(places)
    assert [segment.damaged for segment in read] == [0] * len(read)


async def test_a_deferred_record_is_written_in_the_next_turn_of_the_loop(log: RunLog) -> None:
    """It does not wait for another record."""
    log.append(1, 0, b"soon", later=True)
    await asyncio.sleep(0)
    assert stored_records(log.folder) == [(1, 0, b"soon")]


async def test_a_full_segment_is_followed_by_one_that_begins_with_a_run(log: RunLog) -> None:
    """Numbers continue, even after all segments were deleted."""
    piece = bytes(SEGMENT_BYTES // 4)
    for number in range(4):
        log.admit(0)
        log.append(1, number, piece)
    assert len(segments(log.folder)) == 1
    log.admit(1)
    log.append(2, 0, b"next")
    first, second = segments(log.folder)
    assert [frame.payload for frame in read_segment(second).frames] == [b"next"]
    log.delete(number_of(second))
    assert not first.exists()
    log.close(empty=True)
    with RunLog.open(log.folder) as again:
        again.start(after=number_of(second))
        assert again.end == Position(number_of(second) + 1, 0)


class Watched(RunLog):
    """A log that counts its syncs and holds each of them until it may finish."""

    def __init__(self, folder: Path, lock: int) -> None:
        super().__init__(folder, lock)
        self.syncs = 0
        self.begun = threading.Semaphore(0)
        self.may = threading.Semaphore(0)

    def _sync_files(self, finished: list[int], current: int, sync_folder: bool) -> None:
        self.syncs += 1
        self.begun.release()
        assert self.may.acquire(timeout=10)
        super()._sync_files(finished, current, sync_folder)


async def test_waiters_share_a_sync(tmp_path: Path) -> None:
    """All writers since the last sync began share one. Writers during a sync wait for the next."""
    with Watched.open(tmp_path / "log") as log:
        assert isinstance(log, Watched)
        log.start()
        log.append(1, 0, b"first")
        first = log.synced()
        await asyncio.to_thread(log.begun.acquire)
        waiting = []
        for run in range(2, 22):
            log.append(run, 0, b"others")
            waiting.append(log.synced())
        log.may.release()
        await first
        assert not any(waiter.done() for waiter in waiting)
        log.may.release()
        await asyncio.gather(*waiting)
        assert log.syncs == 2
        assert len(stored_records(log.folder)) == 21


async def test_a_new_segment_during_a_sync_is_not_on_disk(tmp_path: Path) -> None:
    """A cut of it is no damage."""
    with Watched.open(tmp_path / "log") as log:
        assert isinstance(log, Watched)
        log.start()
        log.append(1, 0, bytes(5000))
        syncing = log.synced()
        await asyncio.to_thread(log.begun.acquire)
        log.start()
        log.append(1, 1, b"behind")
        log.may.release()
        await syncing
        await asyncio.sleep(0)
        assert [segment.synced for segment in read_all(log.folder)][1] == 0
        log.may.release()


async def test_a_segment_deleted_during_a_read_is_skipped(log: RunLog) -> None:
    log.start()
    log.append(1, 0, b"text")
    await log.synced()
    log.start()
    reading = read_all(log.folder)
    read = [next(reading).number]
    segments(log.folder)[-1].unlink()
    assert [*read, *(segment.number for segment in reading)] == [1, 2]


async def test_a_partial_write_is_undone(log: RunLog) -> None:
    """The next record takes its place. Deferred records wait."""
    before = bytes(1 << 20)  # longer than any other open file
    log.append(1, 0, before)
    for more in (0, 10, 30):
        with (
            no_file_beyond(log.end.offset + more),
            pytest.raises(StoreFailed, match=r"cannot be written|is full"),
        ):
            log.append(1, 1, bytes(100))
    assert [segment.holes for segment in read_all(log.folder)] == [[]]
    with no_file_beyond(log.end.offset + 30):
        log.append(1, 1, b"for later" * 10, later=True)
        await asyncio.sleep(0)
        with pytest.raises(StoreFailed):
            log.append(2, 0, b"not at all")
        assert stored_records(log.folder) == [(1, 0, before)]
    log.append(3, 0, b"after")
    assert stored_records(log.folder) == [
        (1, 0, before),
        (1, 1, b"for later" * 10),
        (3, 0, b"after"),
    ]
    assert log.failed is None


class Failing(RunLog):
    """A log on a disk that cannot sync."""

    def _sync_files(self, finished: list[int], current: int, sync_folder: bool) -> None:
        raise OSError(5, "Input/output error")


async def test_a_failed_sync_ends_all_acknowledgements(tmp_path: Path) -> None:
    """The state on disk is unknown, so other waiters fail too."""
    with Failing.open(tmp_path / "log") as log:
        log.start()
        log.append(1, 0, b"lost, perhaps")
        waiting = [log.synced() for _ in range(2)]
        for waiter in (*waiting, log.synced()):
            with pytest.raises(StoreFailed, match="cannot be synced"):
                await waiter
        with pytest.raises(StoreFailed, match="cannot be synced"):
            log.append(1, 1, b"more")
        with pytest.raises(StoreFailed, match="cannot be synced"):
            log.admit(0)
        assert "cannot be synced" in (log.watch() or "")


@pytest.mark.parametrize(
    "what", ["a segment", "the owner's file", "the folder", "the segment, which came back"]
)
async def test_a_deleted_log_accepts_no_more_records(log: RunLog, what: str) -> None:
    """No reader would find them."""
    log.append(1, 0, b"seen by nobody")
    (segment,) = segments(log.folder)
    match what:
        case "a segment":
            segment.unlink()
        case "the owner's file":
            (log.folder / "owner").unlink()
        case "the folder":
            log.folder.rename(log.folder.with_name("elsewhere"))
        case _:
            content = segment.read_bytes()
            segment.rename(log.folder / "away")
            segment.write_bytes(content)
    assert "was deleted or replaced" in (log.watch() or "")
    with pytest.raises(StoreFailed, match="was deleted or replaced"):
        log.append(1, 1, b"more")
    with pytest.raises(StoreFailed, match="was deleted or replaced"):
        await log.synced()


async def test_a_full_disk_admits_no_run_but_lets_running_ones_end(tmp_path: Path) -> None:
    """Nothing is half written."""
    with small_disk(tmp_path / "disk", "6m"), RunLog.open(tmp_path / "disk" / "log") as log:
        log.start()
        written = 0
        with filled(tmp_path / "disk"):
            with pytest.raises(StoreFailed, match="is full; make room"):
                while True:
                    log.admit(0)
                    log.append(1, written, bytes(100_000))
                    written += 1
            assert "is full" in (log.watch() or "")
            for _ in range(10):
                log.append(1, written, bytes(100_000))
                written += 1
            with pytest.raises(StoreFailed, match="is full; make room"):
                while True:
                    log.append(1, written, bytes(100_000))
                    written += 1
            assert [number for _, number, _ in stored_records(log.folder)] == list(range(written))
        log.admit(0)
        log.append(1, written, b"")
        assert [number for _, number, _ in stored_records(log.folder)] == list(range(written + 1))
        await log.synced()


@pytest.mark.usefixtures("_open_to_all")
async def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    """The umask of the process makes no difference."""
    with RunLog.open(tmp_path / "log") as log:
        log.start()
        log.append(1, 0, b"a question")
        await log.synced()
        modes = {
            path.name.partition("-")[0]: stat.S_IMODE(path.stat().st_mode)
            for path in log.folder.iterdir()
        }
        assert modes == {"owner": 0o600, "00000001": 0o600}
        assert stat.S_IMODE(log.folder.stat().st_mode) == 0o700


def test_a_second_owner_is_refused_with_the_address_of_the_first(tmp_path: Path) -> None:
    """The address is known as soon as the first has one."""
    with RunLog.open(tmp_path) as log:
        with pytest.raises(StoreInUse, match=f"is in use by process {os.getpid()}") as caught:
            RunLog.open(tmp_path)
        assert caught.value.address == ""
        log.write_address("127.0.0.1:50051")
        with pytest.raises(
            StoreInUse, match=r"is in use by the gateway at 127\.0\.0\.1:50051"
        ) as caught:
            RunLog.open(tmp_path)
        assert caught.value.address == "127.0.0.1:50051"
        log.write_address("h:1")
        with pytest.raises(StoreInUse, match=r"is in use by the gateway at h:1 \("):
            RunLog.open(tmp_path)
    RunLog.open(tmp_path).close()


def test_the_name_of_a_log_stays_unless_a_kill_left_it_empty(tmp_path: Path) -> None:
    """Two empty logs would otherwise take each other's place."""
    names = []
    for folder in ("one", "two"):
        with RunLog.open(tmp_path / folder) as log:
            (log.folder / "name").touch()
            names.append(log.name)
        with RunLog.open(tmp_path / folder) as log:
            names.append(log.name)
    assert (len(set(names)), names[0], all(names)) == (2, names[1], True)


@pytest.fixture
async def small(tmp_path: Path) -> tuple[Path, bytes, Segment]:
    """Path, content and reading of a segment of a few records, some of them synced."""
    with RunLog.open(tmp_path / "log") as log:
        log.start()
        for number in range(4):
            log.append(1 + number % 2, number // 2, f"text {number}".encode())
        await log.synced()
        for number in range(4, 7):
            log.append(1 + number % 2, number // 2, f"text {number}".encode())
        (path,) = segments(log.folder)
        size = log.end.offset
    content = path.read_bytes()[:size]
    copy = tmp_path / path.name
    copy.write_bytes(content)
    whole = read_segment(copy)
    assert (len(whole.frames), whole.holes, 0 < whole.synced < size) == (7, [], True)
    return copy, content, whole


async def test_a_flipped_bit_costs_only_its_own_record(small: tuple[Path, bytes, Segment]) -> None:
    """It is damage where the record was already on disk."""
    path, content, whole = small
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        put(path, bytes(flipped))
        read = read_segment(path)
        kept = [frame for frame in whole.frames if frame in read.frames]
        assert kept == read.frames
        assert all(frame.end.offset > bit // 8 for frame in whole.frames if frame not in kept)
        assert len(kept) >= len(whole.frames) - 1
        assert (read.damaged > 0) == (bit // 8 < whole.synced)


async def test_a_cut_costs_only_the_records_after_it(small: tuple[Path, bytes, Segment]) -> None:
    """It is no damage where they were not known to be on disk."""
    path, content, whole = small
    for size in range(len(content)):
        put(path, content[:size])
        read = read_segment(path)
        assert read.frames == [frame for frame in whole.frames if frame.end.offset <= size]
        assert read.damaged == 0


@pytest.mark.parametrize("later", [False, True], ids=["synced", "for later"])
async def test_a_short_earlier_segment_is_damage(log: RunLog, later: bool) -> None:
    """All of it was on disk before the next one began."""
    log.append(1, 0, b"first")
    log.append(1, 1, b"last", later=later)
    place = log.end.offset
    log.start()
    log.append(1, 2, b"next")
    await log.synced()
    await asyncio.sleep(0)
    path = segments(log.folder)[0]
    content = path.read_bytes()
    assert [segment.damaged for segment in read_all(log.folder)] == [0, 0]
    path.write_bytes(content[: place - 1] + b"?" + content[place:])
    earlier, _ = read_all(log.folder)
    assert [frame.payload for frame in earlier.frames] == [b"first"]
    assert earlier.damaged > 0


@pytest.mark.parametrize("number", [0, 1])
async def test_a_sync_covers_all_earlier_segments(log: RunLog, number: int) -> None:
    """No note is needed in the segments between."""
    for record in range(2):
        log.append(1, record, b"text")
        log.start()
    log.append(1, 2, b"last")
    await log.synced()
    await asyncio.sleep(0)
    path = segments(log.folder)[number]
    path.write_bytes(b"?" + path.read_bytes()[1:])
    damaged = [segment.damaged for segment in read_all(log.folder)]
    assert [bool(size) for size in damaged] == [at == number for at in range(3)]


async def test_a_file_of_zeros_or_nothing_is_read_as_far_as_it_goes(log: RunLog) -> None:
    """A machine crash leaves such files."""
    log.append(1, 0, b"text")
    (path,) = segments(log.folder)
    content = path.read_bytes()
    for rest in (b"", bytes(100), content[:4], content[:4] * 40, content[: log.end.offset - 1]):
        copy = log.folder.with_name(path.name)
        copy.write_bytes(content[: log.end.offset] + rest)
        read = read_segment(copy)
        assert ([frame.payload for frame in read.frames], read.damaged) == ([b"text"], 0)
    copy.write_bytes(b"")
    assert read_segment(copy).frames == []


async def test_text_that_looks_like_records_is_never_read_as_such(
    log: RunLog, tmp_path: Path
) -> None:
    """This holds if the record around it is damaged, as the copied records have another salt."""
    for number in range(3):
        log.append(1, number, b"forged")
    forged = segments(log.folder)[0].read_bytes()[: log.end.offset]
    log.start()
    log.append(2, 0, forged)
    log.append(2, 1, b"last")
    path = Path(shutil.copy(segments(log.folder)[1], tmp_path))
    content = bytearray(path.read_bytes()[: log.end.offset])
    for at in range(24):
        spoiled = content.copy()
        spoiled[at] ^= 1
        path.write_bytes(spoiled)
        assert [
            (frame.run, frame.number, frame.payload) for frame in read_segment(path).frames
        ] == [(2, 1, b"last")]
