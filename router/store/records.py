"""Records of the log: the run of each is the fold of its records, while it runs and when the log is read again."""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec
from msgspec.structs import asdict, replace

from router.amount import NOTHING, Amount
from router.ledger import RunStart
from router.models import Usage
from router.store.log import Position
from router.trace import Call, Run
from router.trace.call import OpenedCall, Outcome
from router.trace.turns import Decided, Searched, Turn, Turns


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


Record = Begun | Opened | Settled | Reserved | Forgotten | Ended | Turn | Searched | Decided
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode


def run_key(run_id: str) -> int:
    """The number by which frames name a run; never 0."""
    return int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest()) or 1


class RecordedRun:
    """A run as its records tell it."""

    def __init__(self, begun: Begun) -> None:
        self.start, self.redact = begun.start, begun.redact
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
        """Amounts that its open calls and its answer may still cost, each with the time that it counts for."""
        if self.kept != NOTHING:
            yield self.start.started_at, self.kept
        for call in self.open.values():
            yield call.started_at, call.reserved

    @property
    def resumable(self) -> bool:
        """Whether an interrupted one can be gone on with: an answer whose records are whole, and hold its texts."""
        return self.start.kind == "answer" and not self.redact and not self.gaps

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
            case Turn() | Searched() | Decided():
                self.turns.apply(record)

    @property
    def damage(self) -> str:
        """In words; empty for none."""
        return f"damaged: {self.gaps} or more of its records are lost" if self.gaps else ""

    def ended(self, run: Run) -> Run:
        """The whole run, from that of its last record."""
        return replace(self.turns.within(run), calls=(*self.calls, *self.cut()), error=run.error or self.damage)

    def interrupted(self) -> Run:
        """The run as it is closed where no record tells its end: calls in flight are charged with their worst case."""
        calls, begun = (*self.calls, *self.cut()), self.start.started_at
        ended_at = max((call.started_at + call.duration_s for call in calls), default=begun)
        known = {name: value for name, value in asdict(self.start).items() if name in Run.__struct_fields__}
        known |= {"calls": calls, "duration_s": max(0.0, ended_at - begun), "redacted": self.redact}
        known |= {"resumed_from": self.start.resumes}
        return Run(**known, status="interrupted", error=self.damage, result=None, settings={})

    def cut(self) -> Iterator[Call]:
        """Its open calls as they end where nobody knows how they went."""
        ended = Settled(0, "interrupted", None, None, None, 0.0, False)
        for number, opened in sorted(self.open.items()):
            yield Call(**(asdict(opened) | asdict(replace(ended, number=number))))
