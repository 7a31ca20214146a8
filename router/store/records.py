"""The records of the log, and the state of a run. The state is computed from the run's records, one
after the other (a fold): while the run is running, and again when the log is read.
"""

from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, fields, replace

from router.amount import NOTHING, Amount
from router.frozen import Frozen
from router.ledger import RunStart
from router.store.log import LogFrame, Position, Segment
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.run import RunStatus
from router.trace.turns import Asked, Decided, Searched, Turn, Turns
from router.trace.values import AnswerDelta, AnswerWritten


class Begun(Frozen, array_like=True, tag=10):
    """Record that a run has begun. If the run is redacted, `start` has no texts."""

    start: RunStart
    redact: bool
    """True if the texts of the run must not be stored."""


class Opened(Frozen, array_like=True, tag=11):
    """Record that a call is about to be made."""

    call: OpenedCall


class Settled(Frozen, array_like=True, tag=12):
    """Record that a call has ended. Its fields are the call's number, and all fields of `Call` that
    `OpenedCall` lacks.
    """

    __annotations__ = {"number": int} | {
        field.name: field.type
        for field in fields(Call)
        if field.name not in OpenedCall.__struct_fields__
    }

    @classmethod
    def of(cls, call: Call) -> "Settled":
        """Return the record for a call that has ended."""
        return cls(*[getattr(call, name) for name in cls.__struct_fields__])


class Reserved(Frozen, array_like=True, tag=13):
    """Record that an amount is reserved for the answer, in place of any earlier amount."""

    amount: Amount


class Forgotten(Frozen, array_like=True, tag=14):
    """Record that a run never began, because its `begin` was cancelled. The run is removed."""


class RunEnded(Frozen, array_like=True, tag=15):
    """Record that a run has ended. `run` has no calls, turns or searches, because they are in
    earlier records of the run.
    """

    run: Run


Record = (
    Begun | Opened | Settled | Reserved | Forgotten | RunEnded | Turn | Searched | Decided | Asked
)
VERSION = 1
"""Version of the records that this release writes. A record begins with a byte for its version.
Records of version 0 have no such byte: they begin with the first byte of an array in MessagePack,
which is larger than every version. A new field at the end of a record, with a default, needs no new
version.
"""
_LAST_VERSION = 0x7F
_encode = msgspec.msgpack.Encoder().encode
_READERS = dict.fromkeys((0, VERSION), msgspec.msgpack.Decoder(Record).decode)
"""Functions that read records, by version."""


def encode(record: Record) -> bytes:
    """Return a record as bytes, with its version."""
    return bytes((VERSION,)) + _encode(record)


def decode(payload: bytes) -> Record:
    """Decode a record of version 0 or `VERSION`. Raises `msgspec.DecodeError`, also for records of
    later versions.
    """
    version = payload[0] if payload and payload[0] <= _LAST_VERSION else 0
    if version not in _READERS:
        raise msgspec.DecodeError(
            f"a record has version {version}, and this release reads up to {VERSION}"
        )
    record: Record = _READERS[version](payload[1:] if version else payload)
    return record


def run_key(run_id: str) -> int:
    """Return the number by which frames refer to a run: a hash of its identifier, never 0."""
    return int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest()) or 1


class RecordedRun:
    """State of a run, computed from its records so far."""

    def __init__(self, begun: Begun) -> None:
        self.start = begun.start
        self.redact = begun.redact
        self.key = run_key(begun.start.id)
        """Key of the run in the log's frames: a hash of its identifier (see `run_key`)."""
        self.records = 1
        """Number of the run's records so far, including the lost ones in `gaps`."""
        self.gaps = 0
        """Number of records that are known to be lost. More may be lost."""
        self.end = Position()
        """Position after the last record that was read."""
        self.segment = 0
        """Number of the segment in which the run began. For a run that resumes an interrupted run:
        the segment in which the interrupted run began.
        """
        self.open = dict[int, OpenedCall]()
        """Calls that have not ended, by number."""
        self.calls = list[Call]()
        """Calls that have ended, in the order of their ends."""
        self.kept = begun.start.hold
        """Amount reserved for the answer."""
        self.turns = Turns()
        self.cancelled = False
        """True if the database has a request to cancel the run."""
        self.before: RecordedRun | None = None
        """The interrupted run that this run resumes; None if it resumes none. The turns of the
        interrupted run are kept, because this run may not have replayed all of them yet.
        """

    @property
    def chain(self) -> "Iterator[RecordedRun]":
        """Yields this run, then the interrupted run that it resumes, and so on, back to the first
        run.
        """
        yield self
        if self.before:
            yield from self.before.chain

    @property
    def resumable(self) -> bool:
        """True if the run can be resumed after an interruption: it is an answer or a table, it is
        not redacted, and none of its records is lost.
        """
        return self.start.kind in ("answer", "table") and not self.redact and not self.gaps

    @property
    def damage(self) -> str:
        """Description of the run's damage, if records are lost; empty if none is."""
        return f"damaged: {self.gaps} or more of its records are lost" if self.gaps else ""

    def apply(self, record: Record) -> None:
        """Apply the next record of the run to the state."""
        self.records += 1
        match record:
            case Opened(call):
                self.open[call.number] = call
                if call.role == "answer":
                    self.kept = NOTHING
            case Settled():
                end = asdict(record)
                if opened := self.open.pop(end["number"], None):
                    self.calls.append(Call(**(asdict(opened) | end)))
            case Reserved(amount):
                self.kept = amount
            case Turn() | Searched() | Decided() | Asked():
                self.turns.apply(record)

    def ended(self, run: Run) -> Run:
        """Return the complete run after its end. `run`: the run in its `RunEnded` record."""
        calls = (*self.calls, *self.cut())
        return replace(self.turns.within(run), calls=calls, error=run.error or self.damage)

    def interrupted(self) -> Run:
        """Return the complete run, for a run without a `RunEnded` record. The status is
        `interrupted`, or `cancelled` if a client requested the cancellation. Calls that were in
        flight are charged the most that they may have spent.
        """
        calls = (*self.calls, *self.cut())
        begun = self.start.started_at
        ended_at = max((call.started_at + call.duration_s for call in calls), default=begun)
        run = self.start.ended(
            status="interrupted",
            calls=calls,
            duration_s=max(0.0, ended_at - begun),
            redacted=self.redact,
            error=self.damage,
            result=None,
            settings={},
        )
        return cancelled(run) if self.cancelled else run

    def cut(self) -> Iterator[Call]:
        """Yield an ended call for each open call: with the outcome `interrupted`, and unknown
        usage.
        """
        for _, opened in sorted(self.open.items()):
            yield Call(
                **asdict(opened),
                outcome="interrupted",
                usage=None,
                nano_usd=None,
                first_token_s=None,
                duration_s=0.0,
            )


def withheld(run: Run, status: RunStatus, error: str) -> Run:
    """Return a copy of an ended run without its answer, because the answer is not delivered. The
    copy has the status `status` and the error `error`.
    """
    events = tuple(
        event for event in run.events if not isinstance(event, AnswerDelta | AnswerWritten)
    )
    return replace(
        run,
        status=status,
        error=error,
        result=None,
        events=events,
    )


def cancelled(run: Run) -> Run:
    """Return a copy of an interrupted run with the status `cancelled`, for a run whose cancellation
    was requested.
    """
    return replace(run, status="cancelled", error=f"RunCancelled: Run {run.id} was cancelled.")


class Change(NamedTuple):
    """A change that must be written to the database: a run has begun, has ended, or is undone
    because it never began.
    """

    start: RunStart
    redact: bool
    """True if the texts of the run must not be stored."""
    run: Run | None = None
    """The run after its end; None if it has not ended."""
    forgotten: bool = False
    """True if the run is undone, because it never began."""
    position: Position = Position()
    """Position in the log after the record of the change."""
    segment: int = 0
    """See `RecordedRun.segment`."""
    queued_at: float = 0.0
    """Time at which the change was queued, in seconds of the monotonic clock."""


class Fold:
    """Computes the runs in a log from the log's frames, one frame after the other.

    The frames of different runs are mixed in the log. Each record has a number within its run. If a
    number is skipped, a record is lost, and the run is marked as damaged.

    Records of a run whose `Begun` record is lost are collected separately. If one of them contains
    the run's identifier (`RunEnded`, or else `Opened`), the missing start of the run is rebuilt
    from it, so that the run's calls are still charged.

    If the last records of a run are lost, no number is skipped. So `read` also marks a running run
    as damaged if one of its records may have been in a damaged part of a segment.
    """

    def __init__(self) -> None:
        self.complete = True
        """True if everything that was synced to disk could be read."""
        self.running = dict[int, RecordedRun]()
        """Runs that have not ended, by key."""
        self.interrupted = dict[str, RecordedRun]()
        """Runs with the status `interrupted`, by identifier. Their gateway stopped before they had
        ended.
        """
        self._headless: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        """Records of runs whose `Begun` record is lost, as pairs of number and record, by the run's
        key.
        """

    def apply(self, frame: LogFrame) -> Change | None:
        """Apply the next frame to its run. Return the change that must be written to the database;
        None if the frame needs none.
        """
        record = decode(frame.payload)
        if isinstance(record, Begun):
            return self._begin(frame, record)

        run = self.running.get(frame.run)
        if run:
            run.gaps += frame.number - run.records
            run.records = frame.number
            run.end = frame.end
            run.apply(record)
        else:
            self._headless[frame.run].append((frame.number, record))
            run = self._salvaged(frame.run) if isinstance(record, RunEnded) else None

        if run is None or not isinstance(record, RunEnded | Forgotten):
            return None
        self.running.pop(frame.run, None)
        ended = run.ended(record.run) if isinstance(record, RunEnded) else None
        if ended and ended.status == "interrupted":
            self.interrupted[ended.id] = run
        return Change(
            run.start,
            run.redact,
            ended,
            ended is None,
            frame.end,
        )

    def _begin(self, frame: LogFrame, begun: Begun) -> Change:
        run = self.running[frame.run] = RecordedRun(begun)
        run.before = self.interrupted.pop(begun.start.resumes, None)
        run.end = frame.end
        run.segment = (run.before or frame.end).segment
        return Change(begun.start, begun.redact, position=frame.end)

    def read(self, segment: Segment) -> list[Change]:
        """Apply all frames of a segment. Return the changes that must be written to the database.

        A damaged part of the segment may have contained records of any running run. So running runs
        without a record after the damaged part are marked as damaged.
        """
        changes = [change for frame in segment.frames if (change := self.apply(frame))]
        self.complete = self.complete and not segment.damaged
        for start, _ in segment.holes:
            for run in self.running.values():
                if start < segment.synced and run.end <= (segment.number, start):
                    run.gaps = max(run.gaps, 1)
        return changes

    def left(self) -> dict[int, RecordedRun]:
        """Return the runs that have not ended, by key. A run whose `Begun` record is lost is
        included if another of its records contains its identifier.
        """
        for key in list(self._headless):
            if run := self._salvaged(key):
                self.running[key] = run
        return self.running

    def _salvaged(self, key: int) -> RecordedRun | None:
        """Rebuild a run that has lost its `Begun` record, from its other records. Return None if
        none of these records contains the run's identifier.
        """
        numbered = self._headless.pop(key)
        start = None
        for _, record in numbered:
            match record:
                case RunEnded(run):
                    start = RunStart(
                        run.id,
                        run.kind,
                        run.tenant,
                        "",
                        run.request_id,
                        run.request,
                        "",
                        run.started_at,
                    )
                case Opened(call) if start is None:
                    start = RunStart(
                        call.run_id,
                        "answer",
                        call.tenant,
                        "",
                        "",
                        "",
                        "",
                        call.started_at,
                    )
        if start is None:
            return None

        recorded = RecordedRun(Begun(start, False))
        for _, record in numbered:
            recorded.apply(record)
        recorded.records = numbered[-1][0] + 1
        recorded.gaps = recorded.records - len(numbered)
        return recorded
