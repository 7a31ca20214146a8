"""Versions of the executor: putting them on record, to work, and out of service, by an operator
or by the gate.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from router.background import errors_logged
from router.errors import BadRequest, BadVersion, StoreFailed
from router.trace.identity import DEFAULT_TENANT
from router.versions.book import (
    DecidedBy,
    ExecutorVersion,
    GateEvidence,
    Traffic,
    TrialFigures,
    VersionBook,
    VersionDecision,
    VersionState,
    traffic_of,
)
from router.versions.gate import (
    GateRule,
    GateVerdict,
    decide,
    evidence_curve,
    figures_of,
    on_held_out,
)


class VersionDraft:
    """Changes versions, and writes down why; of no effect until a book takes it."""

    def __init__(
        self,
        versions: Sequence[ExecutorVersion],
        decided_by: DecidedBy,
        figures: TrialFigures | None = None,
    ) -> None:
        """`versions`: all that are on record. `figures`: what the decisions rest on."""
        self.expected = tuple(versions)
        self.decisions = list[VersionDecision]()
        self._by = decided_by
        self._figures = figures
        self._now = {version.version: version for version in versions}

    @property
    def changed(self) -> list[ExecutorVersion]:
        """Those that are to be replaced."""
        return [
            self._now[version.version]
            for version in self.expected
            if self._now[version.version] != version
        ]

    def in_state(self, *states: VersionState) -> ExecutorVersion | None:
        """Return the version that is in one of these states by now."""
        return next((version for version in self._now.values() if version.state in states), None)

    def find(self, name: str) -> ExecutorVersion:
        """A version by its name. Raises `BadRequest`."""
        if name not in self._now:
            raise BadRequest(
                f"version {name!r}: is not on record; register it, or list those that are."
            )
        return self._now[name]

    def move(
        self,
        version: ExecutorVersion,
        state: VersionState,
        decision: str,
        reason: str = "",
        share: float = 0.0,
    ) -> None:
        """Bring a version into a state; where it is in it, only its share changes, and its
        trial goes on.
        """
        now = time.time()
        state_at = version.state_at if version.state == state else now
        moved = msgspec.structs.replace(version, state=state, share=share, state_at=state_at)
        self._now[version.version] = moved
        self.decisions.append(
            VersionDecision(
                version.version,
                decision,
                version.state,
                state,
                self._by,
                now,
                reason,
                self._figures,
            )
        )

    def promote(self, version: ExecutorVersion, reason: str = "") -> None:
        """Make a version the active one, and retire the one that is."""
        if active := self.in_state("active"):
            self.move(active, "retired", "retire", f"{version.version} is active now.")
        self.move(version, "active", "promote", reason)

    def roll_back(self, version: ExecutorVersion) -> None:
        """Take a version out of service; after an active one, the one that was retired last is
        active. Raises `BadRequest` where there is nothing to take, or none to go back to.
        """
        if version.state not in ("shadow", "canary", "active"):
            raise BadRequest(
                f"version {version.version!r}: is {version.state}, so nothing is to be "
                "taken from it."
            )
        self.move(version, "rolled_back", "roll_back")
        if version.state == "active":
            retired = [each for each in self._now.values() if each.state == "retired"]
            if not retired:
                raise BadRequest(
                    f"version {version.version!r}: no version is retired, to go back to; "
                    "promote another one."
                )
            before = max(retired, key=lambda each: each.state_at)
            self.move(before, "active", "promote", f"{version.version} was rolled back.")


_log = structlog.get_logger("versions")
_NAME = re.compile(r"executor-[0-9]{6,}")
_ATTEMPTS = 5
_POINTS = 40
"""Of a curve: each is a sum over all trials before it."""
MOST_DECISIONS = 1000
"""Decisions that are read at once."""
_NO_HELD_OUT = (
    "To be promoted, it also has to pass the operator's held-out questions: name a file "
    "of some in versions.held_out, "
    "or promote it yourself."
)


class Examination(Protocol):
    """Questions of the operator's, to be asked with two versions; see `HeldOutTest`."""

    size: int

    async def compare(self, candidate: str, active: str, since: float) -> list[tuple[bool, bool]]:
        """Of each question, whether the candidate is right, and whether the active version is."""


class Versions:
    """Decides which versions work for whom. Every method raises `StoreFailed`."""

    def __init__(
        self,
        book: VersionBook,
        load: Callable[[str], Awaitable[str]],
        gate: GateRule | None = None,
        canary_share: float = 0.2,
        *,
        on_change: Callable[[], Awaitable[None]] | None = None,
        held_out: Examination | None = None,
    ) -> None:
        """`load` verifies a published version, loads it where executors run, and returns its
        manifest as JSON; it raises `BadVersion`. `gate`: None leaves every decision to operators.
        `canary_share`: of the runs that a shadow which passes goes on to work for. `on_change`:
        awaited after a version has changed its state; its errors are logged. `held_out`: the test
        that a canary must pass before it is promoted; None: only operators promote.
        """
        self._book = book
        self._load = load
        self.gate = gate
        self._canary_share = canary_share
        self._noted: tuple[str, float, TrialFigures] | None = None
        self._on_change = on_change
        self._held_out = held_out
        self._compared: dict[tuple[str, str, float], list[tuple[bool, bool]]] = {}
        """What came of the held-out questions, by candidate, active version and trial."""

    async def traffic(self) -> Traffic:
        """The versions that work by now. Raises `BadVersion` where no version is active."""
        traffic = traffic_of(await self._book.versions())
        if traffic is None:
            raise BadVersion("no version of the executor is active; promote one.")
        return traffic

    async def figures(self, version: ExecutorVersion) -> TrialFigures | None:
        """Figures that a version has shown in its trial; None where it is not on trial."""
        if version.state not in ("shadow", "canary"):
            return None
        pairs = await self._book.pairs(version.version, version.state, version.state_at)
        return await asyncio.to_thread(figures_of, pairs, self.gate, version.state)

    async def curve(self, version: ExecutorVersion) -> list[tuple[int, tuple[GateEvidence, ...]]]:
        """The evidence on a version that is on trial, after so many trials; nothing where there
        is none.
        """
        if version.state not in ("shadow", "canary") or self.gate is None:
            return []
        pairs = await self._book.pairs(version.version, version.state, version.state_at)
        return await asyncio.to_thread(evidence_curve, pairs, self.gate, version.state, _POINTS)

    async def decisions(
        self, version: str | None = None, after: int = 0
    ) -> Sequence[VersionDecision]:
        """Decisions on one version or on all, with numbers greater than `after`: oldest first, at
        most `MOST_DECISIONS`.
        """
        return await self._book.decisions(version, after, MOST_DECISIONS)

    async def ensure_base(self, name: str, manifest: str = "") -> None:
        """Make a version that the config names the active one, where none is. `manifest`: empty
        for a model itself.
        """

        def plan(draft: VersionDraft) -> None:
            if draft.in_state("active") is None:
                draft.promote(
                    draft.find(name), "It is what the config names, and no version was active."
                )

        if all(version.version != name for version in await self._book.versions()):
            with suppress(BadRequest):  # another gateway was quicker
                await self._add(name, manifest, "config", "The config names it.")
        await self._change(plan, "config")

    async def register(self, name: str) -> ExecutorVersion:
        """Put a published version on record, once it is loaded. Raises `BadRequest` for a name that
        is none or is taken, and what `load` raises.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"version {name!r}: is no version's name; those are like executor-000001."
            )
        if any(version.version == name for version in await self._book.versions()):
            raise BadRequest(f"version {name!r}: is on record already; names are used once.")
        return await self._add(name, await self._load(name), "operator")

    async def set_traffic(
        self, name: str, state: VersionState, share: float = 0.0
    ) -> ExecutorVersion:
        """Let a version run beside the active one (`shadow`), work for a share of the runs
        (`canary`, more than 0 and at most 1), or do nothing (`registered`). Another one that is
        tried gives way. Raises `BadRequest`, and what `load` raises.
        """
        if state not in ("registered", "shadow", "canary"):
            raise BadRequest(
                f"state: a version cannot be set {state}; set it registered, shadow or canary."
            )
        if state == "canary" and not 0 < share <= 1:
            raise BadRequest(f"canary_share is {share:g}; it must be more than 0 and at most 1.")
        if state != "canary" and share != 0:
            raise BadRequest(f"canary_share is {share:g}; only a canary has one.")

        def plan(draft: VersionDraft) -> None:
            version = draft.find(name)
            if version.state == "active":
                raise BadRequest(
                    f"version {name!r}: is active; promote another one, or roll it back."
                )
            if (version.state, version.share) == (state, share):
                return
            tried = draft.in_state("shadow", "canary")
            if state != "registered" and tried and tried != version:
                draft.move(tried, "registered", "stop", f"{name} is tried instead.")
            draft.move(version, state, "stop" if state == "registered" else state, share=share)

        if state != "registered":
            await self._check_loaded(name)
        return (await self._change(plan, "operator")).find(name)

    async def promote(self, name: str) -> ExecutorVersion:
        """Make a version the active one. Raises `BadRequest`, and what `load` raises."""

        def plan(draft: VersionDraft) -> None:
            version = draft.find(name)
            if version.state == "active":
                raise BadRequest(f"version {name!r}: is active already.")
            draft.promote(version)

        await self._check_loaded(name)
        return (await self._change(plan, "operator")).find(name)

    async def roll_back(self, name: str) -> ExecutorVersion | None:
        """Take a version that is tried, or is active, out of service; the version that is active
        then. Raises `BadRequest`, also where no version was active before.
        """
        draft = await self._change(lambda draft: draft.roll_back(draft.find(name)), "operator")
        return draft.in_state("active")

    async def review(self) -> None:
        """Let the gate decide on the version that is tried. Of no effect where another process
        changes versions meanwhile; the next review sees what came of it.
        """
        versions = await self._book.versions()
        traffic = traffic_of(versions)
        if (
            self.gate is None
            or traffic is None
            or traffic.candidate is None
            or traffic.stage is None
        ):
            return
        candidate = next(version for version in versions if version.version == traffic.candidate)
        pairs = await self._book.pairs(candidate.version, traffic.stage, candidate.state_at)
        verdict, figures, reason = await asyncio.to_thread(decide, pairs, self.gate, traffic.stage)
        trial = candidate.version, traffic.active, candidate.state_at
        if passed := verdict == "promote" and traffic.stage == "canary":
            over = len(pairs) >= self.gate.most_trials
            verdict, said = self._examined(self.gate, trial, figures, over=over)
            reason = f"{reason} {said}"
        draft = VersionDraft(versions, "gate", figures)
        if verdict == "wait":
            noted = candidate.version, candidate.state_at, figures
            if len(pairs) and noted != self._noted:  # something has come since the last note
                draft.move(candidate, candidate.state, "wait", reason, candidate.share)
                await self._book.wait(draft.decisions[-1])
                self._noted = noted
                _tell(draft.decisions[-1])
            if passed and self._held_out and trial not in self._compared:
                self._compared[trial] = await self._held_out.compare(*trial)
                await self.review()  # on what is known by now
            return
        if verdict == "roll_back":
            draft.move(candidate, "rolled_back", "roll_back", reason)
        elif verdict == "stop":
            draft.move(candidate, "registered", "stop", reason)
        elif traffic.stage == "shadow":
            draft.move(candidate, "canary", "canary", reason, self._canary_share)
        else:
            draft.promote(candidate, reason)
        await self._take(draft)

    def _examined(
        self, gate: GateRule, trial: tuple[str, str, float], figures: TrialFigures, *, over: bool
    ) -> tuple[GateVerdict, str]:
        """Decide by held-out questions on a canary that has passed its trial, and say why; wait
        while they are to be asked. `over`: there are no more trials to come.
        """
        if self._held_out is None:
            return "stop" if over else "wait", _NO_HELD_OUT
        if trial in self._compared:
            return on_held_out(self._compared[trial], gate)
        tokens = (figures.tokens + figures.active_tokens) // figures.trials * self._held_out.size
        return "wait", (
            f"Both versions are asked {self._held_out.size} held-out questions now, for "
            f"about {tokens:,} executor "
            f"tokens and what leads them, booked to {DEFAULT_TENANT}."
        )

    async def list(self) -> "list[tuple[ExecutorVersion, TrialFigures | None]]":
        """All versions, newest first, each with what it has shown in its trial; None where it
        is not on trial.
        """
        return [(version, await self.figures(version)) for version in await self._book.versions()]

    async def _add(
        self, name: str, manifest: str, decided_by: DecidedBy, reason: str = ""
    ) -> ExecutorVersion:
        now = time.time()
        version = ExecutorVersion(name, "registered", 0.0, now, now, manifest)
        decision = VersionDecision(name, "register", None, "registered", decided_by, now, reason)
        await self._book.add(version, decision)
        _tell(decision)
        return version

    async def _check_loaded(self, name: str) -> None:
        """Raise where the files of a version are not what they were when it was registered."""
        manifest = VersionDraft(await self._book.versions(), "operator").find(name).manifest
        if manifest and await self._load(name) != manifest:
            raise BadVersion(
                f"{name}: is not what was registered; names are used once, so publish it "
                "as the next one."
            )

    async def _change(
        self, plan: Callable[[VersionDraft], None], decided_by: DecidedBy
    ) -> VersionDraft:
        """Carry out a plan, anew where others were quicker."""
        for _ in range(_ATTEMPTS):
            draft = VersionDraft(await self._book.versions(), decided_by)
            plan(draft)
            if not draft.decisions or await self._take(draft):
                return draft
        raise StoreFailed("Other processes keep changing versions of the executor; try again.")

    async def _take(self, draft: VersionDraft) -> bool:
        if not await self._book.change(draft.expected, draft.changed, draft.decisions):
            return False
        for decision in draft.decisions:
            _tell(decision)
        if self._on_change:
            with errors_logged(_log, "versions.not_in_use_yet"):
                await self._on_change()
        return True


def _tell(decision: VersionDecision) -> None:
    figures = decision.figures
    known: dict[str, object] = (
        {"trials": figures.trials, "judged": figures.judged} if figures else {}
    )
    known |= (
        {each.measure: (each.in_favour, each.against) for each in figures.evidence}
        if figures
        else {}
    )
    _log.info(
        "gate.decided" if decision.decided_by == "gate" else "version.decided",
        version=decision.version,
        decision=decision.decision,
        state=decision.to_state,
        reason=decision.reason,
        **known,
    )
