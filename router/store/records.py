"""Records of the log, and runs as the fold of their records: while they run, and when the log is
read again.
"""

from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, fields, replace

from router.amount import NOTHING, Amount
from router.ledger import RunStart
from router.store.log import LogFrame, Position, Segment
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.run import RunStatus
from router.trace.turns import Asked, Decided, Searched, Turn, Turns
from router.trace.values import AnswerWritten


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A run has begun. The texts of a redacted run are left out."""

    start: RunStart
    redact: bool


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A call is about to be made."""

    call: OpenedCall


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A call has ended: its number, and every field that `Call` adds to `OpenedCall`."""

    __annotations__ = {"number": int} | {
        field.name: field.type
        for field in fields(Call)
        if field.name not in OpenedCall.__struct_fields__
    }

    @classmethod
    def of(cls, call: Call) -> "Settled":
        """Return the record of a call's end."""
        return cls(*[getattr(call, name) for name in cls.__struct_fields__])


class Reserved(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The amount reserved for the answer, in place of any earlier one."""

    amount: Amount


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The run never began."""


class RunEnded(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The run has ended. Its calls, turns and searches are in the records before this one."""

    run: Run


Record = (
    Begun | Opened | Settled | Reserved | Forgotten | RunEnded | Turn | Searched | Decided | Asked
)
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode


def run_key(run_id: str) -> int:
    """Return the number of a run in its frames; never 0."""
    return int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest()) or 1


class RecordedRun:
    """State of a run after the records so far."""

    def __init__(self, begun: Begun) -> None:
        self.start = begun.start
        self.redact = begun.redact
        self.key = run_key(begun.start.id)
        """Number of the run in its frames."""
        self.records = 1
        """Number of records so far."""
        self.gaps = 0
        """Minimum number of lost records."""
        self.end = Position()
        """Position after the last record that was read."""
        self.segment = 0
        """Number of the segment in which the run began."""
        self.open: dict[int, OpenedCall] = {}
        """Calls that have not ended, by number."""
        self.calls: list[Call] = []
        """Calls that have ended, in that order."""
        self.kept = begun.start.hold
        """Amount reserved for the answer."""
        self.turns = Turns()
        self.before: RecordedRun | None = None
        """The interrupted run that this one resumes; some of its turns may not be reached yet."""

    @property
    def chain(self) -> "Iterator[RecordedRun]":
        """The run, the run that it resumes, and so on."""
        yield self
        if self.before:
            yield from self.before.chain

    @property
    def reserved(self) -> Iterator[tuple[float, Amount]]:
        """Amounts reserved for the open calls and the answer, each with the Unix time that
        decides its day and month.
        """
        if self.kept != NOTHING:
            yield self.start.started_at, self.kept
        for call in self.open.values():
            yield call.started_at, call.reserved

    @property
    def resumable(self) -> bool:
        """True if the run can be resumed once interrupted: an answer or a table whose records are
        complete and hold its texts.
        """
        return self.start.kind in ("answer", "table") and not self.redact and not self.gaps

    @property
    def damage(self) -> str:
        """Description of the damage; empty for none."""
        return f"damaged: {self.gaps} or more of its records are lost" if self.gaps else ""

    def apply(self, record: Record) -> None:
        """Take the next record."""
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
        """Return the whole run, given the one in its `RunEnded` record."""
        calls = (*self.calls, *self.cut())
        return replace(self.turns.within(run), calls=calls, error=run.error or self.damage)

    def interrupted(self) -> Run:
        """Return the run, closed without a `RunEnded` record: calls in flight are charged their
        worst case.
        """
        calls = (*self.calls, *self.cut())
        begun = self.start.started_at
        ended_at = max((call.started_at + call.duration_s for call in calls), default=begun)
        return self.start.ended(
            status="interrupted",
            calls=calls,
            duration_s=max(0.0, ended_at - begun),
            redacted=self.redact,
            error=self.damage,
            result=None,
            settings={},
        )

    def cut(self) -> Iterator[Call]:
        """Yield the open calls as interrupted ones, whose usage is unknown."""
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
    """Return an ended run without its answer, which is not delivered."""
    events = tuple(event for event in run.events if not isinstance(event, AnswerWritten))
    return replace(
        run,
        status=status,
        error=error,
        result=None,
        events=events,
    )


class Change(NamedTuple):
    """A change to the database: a run begins, ends, or turns out never to have begun."""

    start: RunStart
    redact: bool
    run: Run | None = None
    """The ended run; None if it begins or never began."""
    forgotten: bool = False
    """True if the run never began."""
    position: Position = Position()
    """Position in the log after the record of the change."""
    segment: int = 0
    """Number of the segment in which the run began."""


class Fold:
    """Folds the frames of a log into runs.

    Frames of different runs are mixed, and each has its number within its run. A number that is
    skipped is a gap: the run is marked as damaged by it. Records whose `Begun` record is lost are
    collected apart. If one of them names the run (`RunEnded`, or else `Opened`), a start is made up
    from it, so that the calls are still charged. Damage without a later record of the run shows no
    gap, so `read` also marks the running runs that may have had a record there.
    """

    def __init__(self) -> None:
        self.complete = True
        """True if everything that was on disk could be read."""
        self.running: dict[int, RecordedRun] = {}
        """Runs that have not ended, by key."""
        self.interrupted: dict[str, RecordedRun] = {}
        """Runs that were closed because their gateway had ended, by identifier."""
        self._headless: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        """Numbered records of runs whose `Begun` record is lost, by key."""

    def apply(self, frame: LogFrame) -> Change | None:
        """Take the next frame. Return its change to the database, if any."""
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
        """Take all frames of a segment. Return their changes to the database.

        A damaged piece that was on disk may have held records of any run that is under way and
        has no later record, so those runs get a gap.
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
        included if another record names it.
        """
        for key in list(self._headless):
            if run := self._salvaged(key):
                self.running[key] = run
        return self.running

    def _salvaged(self, key: int) -> RecordedRun | None:
        """Rebuild a run whose `Begun` record is lost from its other records, if they name it."""
        numbered = self._headless.pop(key)
        start = None
        for _, record in numbered:
            if isinstance(record, RunEnded):
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
