"""Records of the log, and runs as the fold of theirs: while they run, and when the log is read
again.
"""

from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from router.amount import NOTHING, Amount
from router.ledger import RunStart
from router.models import Usage
from router.store.log import Frame, Position, Segment
from router.trace import Call, Run
from router.trace.call import OpenedCall, Outcome
from router.trace.run import RunStatus
from router.trace.turns import Asked, Decided, Searched, Turn, Turns
from router.trace.values import AnswerWritten


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A run is on record. The texts of a redacted one are not."""

    start: RunStart
    redact: bool


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A call is about to leave."""

    call: OpenedCall


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A call has ended: what of `Call` is not known before."""

    number: int
    outcome: Outcome
    usage: Usage | None
    nano_usd: int | None
    first_token_s: float | None
    duration_s: float
    impossible_usage: bool

    @classmethod
    def of(cls, call: Call) -> "Settled":
        """The record of a call's end."""
        return cls(*[getattr(call, name) for name in cls.__struct_fields__])


class Reserved(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """So much is kept for the answer, instead of what was kept before."""

    amount: Amount


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The run never began."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The run has ended; its calls, turns and searches are those of the records before."""

    run: Run


Record = Begun | Opened | Settled | Reserved | Forgotten | Ended | Turn | Searched | Decided | Asked
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode


def run_key(run_id: str) -> int:
    """The number by which frames name a run; never 0."""
    return int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest()) or 1


class RecordedRun:
    """A run as its records tell it."""

    def __init__(self, begun: Begun) -> None:
        self.start = begun.start
        self.redact = begun.redact
        self.key = run_key(begun.start.id)
        """By which frames name it."""
        self.records = 1
        """The number of them so far."""
        self.gaps = 0
        """Records that were lost, at least."""
        self.end = Position()
        """The place behind the last record that was read."""
        self.segment = 0
        """The number of the segment in which it began."""
        self.open: dict[int, OpenedCall] = {}
        """Calls that have not ended, by their numbers."""
        self.calls: list[Call] = []
        """Calls that have ended, in that order."""
        self.kept = begun.start.hold
        """The amount that is kept for its answer."""
        self.turns = Turns()
        self.before: RecordedRun | None = None
        """The one that it goes on with, some of whose turns it may not have come to."""

    @property
    def chain(self) -> "Iterator[RecordedRun]":
        """Itself, the run that it goes on with, and so on."""
        yield self
        if self.before:
            yield from self.before.chain

    @property
    def reserved(self) -> Iterator[tuple[float, Amount]]:
        """Amounts that its open calls and its answer may still cost, each with the time that it
        counts for.
        """
        if self.kept != NOTHING:
            yield self.start.started_at, self.kept
        for call in self.open.values():
            yield call.started_at, call.reserved

    @property
    def resumable(self) -> bool:
        """Whether an interrupted one can be gone on with: an answer or a table whose records are
        whole, and hold its texts.
        """
        return self.start.kind in ("answer", "table") and not self.redact and not self.gaps

    def apply(self, record: Record) -> None:
        """Take the next record."""
        self.records += 1
        match record:
            case Opened(call):
                self.open[call.number] = call
                if call.role == "answer":
                    self.kept = NOTHING
            case Settled(number=number):
                if opened := self.open.pop(number, None):
                    self.calls.append(Call(**(asdict(opened) | asdict(record))))
            case Reserved(amount):
                self.kept = amount
            case Turn() | Searched() | Decided() | Asked():
                self.turns.apply(record)

    @property
    def damage(self) -> str:
        """In words; empty for none."""
        return f"damaged: {self.gaps} or more of its records are lost" if self.gaps else ""

    def ended(self, run: Run) -> Run:
        """The whole run, from that of its last record."""
        return replace(
            self.turns.within(run), calls=(*self.calls, *self.cut()), error=run.error or self.damage
        )

    def interrupted(self) -> Run:
        """The run as it is closed where no record tells its end: calls in flight are charged
        with their worst case.
        """
        calls = (*self.calls, *self.cut())
        begun = self.start.started_at
        ended_at = max((call.started_at + call.duration_s for call in calls), default=begun)
        known = {"calls": calls, "duration_s": max(0.0, ended_at - begun), "redacted": self.redact}
        return self.start.ended(
            **known, status="interrupted", error=self.damage, result=None, settings={}
        )

    def cut(self) -> Iterator[Call]:
        """Its open calls as they end where nobody knows how they went."""
        for number, opened in sorted(self.open.items()):
            yield Call(
                **(
                    asdict(opened)
                    | asdict(Settled(number, "interrupted", None, None, None, 0.0, False))
                )
            )


def withheld(run: Run, status: RunStatus, error: str) -> Run:
    """A run that has ended, as one whose answer nobody gets."""
    events = tuple(event for event in run.events if not isinstance(event, AnswerWritten))
    return replace(run, status=status, error=error, result=None, events=events)


class Change(NamedTuple):
    """The beginning or the end of a run, or that it never began."""

    start: RunStart
    redact: bool
    run: Run | None = None
    """How it ended."""
    forgotten: bool = False
    position: Position = Position()
    """The place in the log behind its record."""
    segment: int = 0
    """The number of the segment in which the run began."""


class Fold:
    """The runs of a log, as its frames come."""

    def __init__(self) -> None:
        self.whole = True
        """Whether all of the log could be read that was on disk."""
        self.running: dict[int, RecordedRun] = {}
        """Those that have not ended, by their keys."""
        self.interrupted: dict[str, RecordedRun] = {}
        """Those that were closed because their gateway had ended, by their identifiers."""
        self._headless: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        """Records, with their numbers, of runs whose beginning is lost."""

    def apply(self, frame: Frame) -> Change | None:
        """Take the next frame; return the change that it makes to the database, if it makes one."""
        record = decode(frame.payload)
        if isinstance(record, Begun):
            begun = self.running[frame.run] = RecordedRun(record)
            begun.before = self.interrupted.pop(record.start.resumes, None)
            begun.end = frame.end
            begun.segment = (begun.before or frame.end).segment
            return Change(record.start, record.redact, position=frame.end)
        run = self.running.get(frame.run)
        if run is None:
            self._headless[frame.run].append((frame.number, record))
            if not isinstance(record, Ended) or not (run := self._salvaged(frame.run)):
                return None
        else:
            run.gaps += frame.number - run.records
            run.records = frame.number
            run.end = frame.end
            run.apply(record)
        if not isinstance(record, Ended | Forgotten):
            return None
        self.running.pop(frame.run, None)
        ended = run.ended(record.run) if isinstance(record, Ended) else None
        if ended and ended.status == "interrupted":
            self.interrupted[ended.id] = run
        return Change(run.start, run.redact, ended, ended is None, frame.end)

    def read(self, segment: Segment) -> list[Change]:
        """Take the frames of a segment. Where a part of it that was on disk cannot be read, runs
        which are under way and have no records behind it may have lost some.
        """
        changes = [change for frame in segment.frames if (change := self.apply(frame))]
        self.whole = self.whole and not segment.damaged
        for start, _ in segment.holes:
            for run in self.running.values():
                if start < segment.synced and run.end <= (segment.number, start):
                    run.gaps = max(run.gaps, 1)
        return changes

    def left(self) -> dict[int, RecordedRun]:
        """The runs that have not ended, those included whose beginning is lost, where it can be
        told whose they are.
        """
        for key in list(self._headless):
            if run := self._salvaged(key):
                self.running[key] = run
        return self.running

    def _salvaged(self, key: int) -> RecordedRun | None:
        """A run whose beginning is lost, from what its other records say of it."""
        numbered = self._headless.pop(key)
        start = None
        for _, record in numbered:
            if isinstance(record, Ended):
                run = record.run
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
            elif isinstance(record, Opened) and start is None:
                call = record.call
                start = RunStart(
                    call.run_id, "answer", call.tenant, "", "", "", "", call.started_at
                )
        if start is None:
            return None
        recorded = RecordedRun(Begun(start, False))
        for _, record in numbered:
            recorded.apply(record)
        recorded.records = numbered[-1][0] + 1
        recorded.gaps = recorded.records - len(numbered)
        return recorded
