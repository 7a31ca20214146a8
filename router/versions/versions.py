"""Changes of the states of executor versions, by an operator or by the gate. A version is
registered, tried as a shadow (its answers are not shown) or as a canary (it serves a share of the
runs), promoted, and rolled back.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from msgspec.structs import replace

from router.background import errors_logged
from router.errors import BadRequest, BadVersion, StoreFailed
from router.trace.identity import DEFAULT_TENANT
from router.versions.book import (
    DecidedBy,
    ExecutorVersion,
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
    figures_of,
    on_held_out,
)


class VersionDraft:
    """Collects changes of versions and the decisions on them. They are only stored when the draft
    is passed to `VersionBook.change`.
    """

    def __init__(
        self,
        versions: Sequence[ExecutorVersion],
        decided_by: DecidedBy,
        figures: TrialFigures | None = None,
    ) -> None:
        """`versions`: all stored versions. `figures`: the figures on which the decisions are based;
        None for an operator's decisions.
        """
        self.expected = tuple(versions)
        self.decisions = list[VersionDecision]()
        self._by = decided_by
        self._figures = figures
        self._now = {version.version: version for version in versions}

    @property
    def changed(self) -> list[ExecutorVersion]:
        """The versions that the draft changes, with their new states."""
        return [
            self._now[version.version]
            for version in self.expected
            if self._now[version.version] != version
        ]

    def in_state(self, *states: VersionState) -> ExecutorVersion | None:
        """Return the version that is in one of these states after the changes so far; None if there
        is none.
        """
        return next((version for version in self._now.values() if version.state in states), None)

    def find(self, name: str) -> ExecutorVersion:
        """Return a version by its name. Raises `BadRequest` if it is not registered."""
        if name not in self._now:
            raise BadRequest(
                f"version {name!r}: is not registered; register it (rolegate versions register)."
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
        """Move a version into a state, and add the decision. If the version is in that state
        already, only its share changes, and its trial continues.
        """
        now = time.time()
        state_at = version.state_at if version.state == state else now
        moved = replace(version, state=state, share=share, state_at=state_at)
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
        """Make a version the active one, and retire the version that was active."""
        if active := self.in_state("active"):
            self.move(active, "retired", "retire", f"{version.version} is active now.")
        self.move(version, "active", "promote", reason)

    def roll_back(self, version: ExecutorVersion) -> None:
        """Take a version out of service. If it was active, the version that was retired last
        becomes active again. Raises `BadRequest` if the version is not in service, or if no version
        was retired.
        """
        if version.state not in ("shadow", "canary", "active"):
            raise BadRequest(
                f"version {version.version!r}: is {version.state}, so it cannot be rolled back; "
                "choose a shadow, a canary or the active version (rolegate versions list)."
            )
        self.move(version, "rolled_back", "roll_back")
        if version.state == "active":
            retired = [other for other in self._now.values() if other.state == "retired"]
            if not retired:
                raise BadRequest(
                    f"version {version.version!r}: has no retired version that could replace it; "
                    "instead of rolling it back, promote another (rolegate versions promote)."
                )
            before = max(retired, key=lambda version: version.state_at)
            self.move(before, "active", "promote", f"{version.version} was rolled back.")


_log = structlog.get_logger("versions")
_NAME = re.compile(r"executor-[0-9]{6,}")
_ATTEMPTS = 5
MAX_DECISIONS = 1000
"""Max decisions read in one call."""
_NO_HELD_OUT = (
    "Before the gate promotes a version, the version must pass held-out questions: name a file of "
    "them in versions.held_out, or promote the version yourself."
)


class Examination(Protocol):
    """Protocol of a test of two versions with held-out questions; see `HeldOutTest`."""

    size: int
    """Number of questions."""

    async def compare(
        self,
        candidate: str,
        active: str,
        since: float,
    ) -> list[tuple[bool, bool]]:
        """Return for each question whether the candidate is right, and whether the active version
        is right; see `HeldOutTest.compare`.
        """


@dataclass(slots=True)
class Versions:
    """Changes the states of executor versions for operators and for the gate. Every method raises
    `StoreFailed` if the database fails.
    """

    book: VersionBook
    load: Callable[[str], Awaitable[str]]
    """Verifies a published version, loads it into the engines, and returns its manifest as JSON.
    Raises `BadVersion`.
    """
    gate: GateRule | None = None
    """The rule of the gate; None if only operators decide."""
    canary_share: float = 0.2
    """Share of the runs that a candidate serves when the gate makes it a canary."""
    on_change: Callable[[], Awaitable[None]] | None = None
    """Awaited after a version has changed its state. Errors that it raises are logged."""
    held_out: Examination | None = None
    """The test that a canary must pass before the gate promotes it; None if only operators may
    promote a version.
    """
    _noted: tuple[str, float, TrialFigures] | None = field(default=None, init=False)
    _compared: dict[tuple[str, str, float], Sequence[tuple[bool, bool]]] = field(
        default_factory=dict, init=False
    )
    """Results of the held-out questions; see `Examination.compare`. The keys are the candidate, the
    active version and the Unix time at which the candidate's stage began.
    """

    async def traffic(self) -> Traffic:
        """Return the versions in use. Raises `BadVersion` if no version is active."""
        traffic = traffic_of(await self.book.versions())
        if traffic is None:
            raise BadVersion(
                "no version of the executor is active; promote one (rolegate versions promote)."
            )
        return traffic

    async def figures(self, version: ExecutorVersion) -> TrialFigures | None:
        """Return the figures of a version in the current stage of its trial; None if it is not on
        trial.
        """
        if version.state not in ("shadow", "canary"):
            return None
        pairs = await self.book.pairs(version.version, version.state, version.state_at)
        return await asyncio.to_thread(figures_of, pairs, self.gate, version.state)

    async def decisions(
        self, version: str | None = None, after: int = 0
    ) -> Sequence[VersionDecision]:
        """Return the decisions with numbers above `after`, oldest first and at most
        `MAX_DECISIONS`. `version`: only decisions on this version; None for all versions.
        """
        return await self.book.decisions(version, after, MAX_DECISIONS)

    async def ensure_base(self, name: str, manifest: str = "") -> None:
        """Register the version that the config names, if it is not registered, and make it the
        active version if no version is active. `manifest`: manifest of the version as JSON; empty
        if the config names a model that is not a published version.
        """

        def plan(draft: VersionDraft) -> None:
            if draft.in_state("active") is None:
                reason = "The config names it, and no version was active."
                draft.promote(draft.find(name), reason)

        if all(version.version != name for version in await self.book.versions()):
            with suppress(BadRequest):  # another gateway was faster
                await self._add(name, manifest, "config", "The config names it.")
        await self._change(plan, "config")

    async def register(self, name: str) -> ExecutorVersion:
        """Load a published version and store it in the state `registered`. Raises `BadRequest` if
        the name is invalid or already used, and the errors of `load`.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"version {name!r}: is not a valid name; use executor- and six digits or more."
            )
        if any(version.version == name for version in await self.book.versions()):
            raise BadRequest(
                f"version {name!r}: is registered already; publish the version under a new name."
            )
        return await self._add(name, await self.load(name), "operator")

    async def set_traffic(
        self,
        name: str,
        state: VersionState,
        share: float = 0.0,
    ) -> ExecutorVersion:
        """Put a version into a state, and return the version.

        `shadow`: the version works alongside the active version. `canary`: the version serves the
        share `share` of the runs, more than 0 and at most 1. `registered`: the version is not used.
        A shadow or canary replaces any other version on trial. Raises `BadRequest`, and the errors
        of `load`.
        """
        if state not in ("registered", "shadow", "canary"):
            raise BadRequest(
                f"state must be registered, shadow or canary, got {state}; to make a version "
                "active, promote it (rolegate versions promote)."
            )
        if state == "canary" and not 0 < share <= 1:
            raise BadRequest(f"canary_share must be above 0 and at most 1, got {share:g}.")
        if state != "canary" and share != 0:
            raise BadRequest(f"canary_share must be 0 unless state is canary, got {share:g}.")

        def plan(draft: VersionDraft) -> None:
            version = draft.find(name)
            if version.state == "active":
                raise BadRequest(
                    f"version {name!r}: is active until another version is promoted; promote one "
                    "(rolegate versions promote)."
                )
            if (version.state, version.share) == (state, share):
                return
            tried = draft.in_state("shadow", "canary")
            if state != "registered" and tried and tried != version:
                draft.move(tried, "registered", "stop", f"{name} is on trial instead.")
            draft.move(version, state, "stop" if state == "registered" else state, share=share)

        if state != "registered":
            await self._check_loaded(name)
        return (await self._change(plan, "operator")).find(name)

    async def promote(self, name: str) -> ExecutorVersion:
        """Make a version the active one. Raises `BadRequest` if it is not registered or is active
        already, and the errors of `load`.
        """

        def plan(draft: VersionDraft) -> None:
            version = draft.find(name)
            if version.state == "active":
                raise BadRequest(f"version {name!r}: is active already, so nothing has changed.")
            draft.promote(version)

        await self._check_loaded(name)
        return (await self._change(plan, "operator")).find(name)

    async def roll_back(self, name: str) -> ExecutorVersion | None:
        """Take a version on trial or the active version out of service, and return the version that
        is active afterwards. Raises `BadRequest` if the version is in another state, or if it is
        active and there is no retired version to return to.
        """
        draft = await self._change(lambda draft: draft.roll_back(draft.find(name)), "operator")
        return draft.in_state("active")

    async def review(self) -> None:
        """Let the gate decide on the version on trial, if there is one. If another process changes
        versions meanwhile, this review changes nothing, and the next review decides.
        """
        versions = await self.book.versions()
        traffic = traffic_of(versions)
        if (
            self.gate is None
            or traffic is None
            or traffic.candidate is None
            or traffic.stage is None
        ):
            return
        candidate = next(version for version in versions if version.version == traffic.candidate)
        pairs = await self.book.pairs(candidate.version, traffic.stage, candidate.state_at)
        verdict, figures, reason = await asyncio.to_thread(decide, pairs, self.gate, traffic.stage)
        trial = candidate.version, traffic.active, candidate.state_at
        passed = verdict == "promote" and traffic.stage == "canary"
        if passed:
            over = len(pairs) >= self.gate.max_trials
            verdict, held_out_reason = self._examined(self.gate, trial, figures, over=over)
            reason = f"{reason} {held_out_reason}"

        draft = VersionDraft(versions, "gate", figures)
        if verdict == "wait":
            noted = candidate.version, candidate.state_at, figures
            if len(pairs) and noted != self._noted:
                draft.move(
                    candidate,
                    candidate.state,
                    "wait",
                    reason,
                    candidate.share,
                )
                await self.book.wait(draft.decisions[-1])
                self._noted = noted
                _tell(draft.decisions[-1])
            if passed and self.held_out and trial not in self._compared:
                self._compared[trial] = await self.held_out.compare(*trial)
                await self.review()  # decides by the results of the held-out questions
            return
        if verdict == "roll_back":
            draft.move(candidate, "rolled_back", "roll_back", reason)
        elif verdict == "stop":
            draft.move(candidate, "registered", "stop", reason)
        elif traffic.stage == "shadow":
            draft.move(
                candidate,
                "canary",
                "canary",
                reason,
                self.canary_share,
            )
        else:
            draft.promote(candidate, reason)
        await self._take(draft)

    def _examined(
        self,
        gate: GateRule,
        trial: tuple[str, str, float],
        figures: TrialFigures,
        *,
        over: bool,
    ) -> tuple[GateVerdict, str]:
        """Return the decision on a canary that has passed its trial, according to the held-out
        questions, and the reason in words. The decision is `wait` until both versions have answered
        the questions. `over`: True if the stage has had its max number of trials.
        """
        if self.held_out is None:
            return "stop" if over else "wait", _NO_HELD_OUT
        if trial in self._compared:
            return on_held_out(self._compared[trial], gate)
        tokens = (figures.tokens + figures.active_tokens) // figures.trials * self.held_out.size
        return "wait", (
            f"Both versions now answer {self.held_out.size} held-out questions, for about "
            f"{tokens:,} executor tokens, plus tokens of the other roles, booked to the tenant "
            f"{DEFAULT_TENANT}."
        )

    async def list(self) -> "list[tuple[ExecutorVersion, TrialFigures | None]]":
        """Return all versions, newest first, each with the figures of its trial; None for a version
        that is not on trial.
        """
        return [(version, await self.figures(version)) for version in await self.book.versions()]

    async def _add(
        self,
        name: str,
        manifest: str,
        decided_by: DecidedBy,
        reason: str = "",
    ) -> ExecutorVersion:
        now = time.time()
        version = ExecutorVersion(
            name,
            "registered",
            0.0,
            now,
            now,
            manifest,
        )
        decision = VersionDecision(
            name,
            "register",
            None,
            "registered",
            decided_by,
            now,
            reason,
        )
        await self.book.add(version, decision)
        _tell(decision)
        return version

    async def _check_loaded(self, name: str) -> None:
        """Load a registered version. Raises `BadVersion` if its files have changed since it was
        registered.
        """
        manifest = VersionDraft(await self.book.versions(), "operator").find(name).manifest
        if manifest and await self.load(name) != manifest:
            raise BadVersion(
                f"{name}: its files have changed since it was registered; publish them as a new "
                "version, because a name is used only once."
            )

    async def _change(
        self, plan: Callable[[VersionDraft], None], decided_by: DecidedBy
    ) -> VersionDraft:
        """Apply `plan` to a draft of the stored versions, store the draft and return it. If another
        process has changed versions meanwhile, repeat this with the new versions, at most five
        times. Raises `StoreFailed` after that.
        """
        for _ in range(_ATTEMPTS):
            draft = VersionDraft(await self.book.versions(), decided_by)
            plan(draft)
            if not draft.decisions or await self._take(draft):
                return draft
        raise StoreFailed(
            "Other processes keep changing the versions, so nothing was changed; try again."
        )

    async def _take(self, draft: VersionDraft) -> bool:
        if not await self.book.change(draft.expected, draft.changed, draft.decisions):
            return False
        for decision in draft.decisions:
            _tell(decision)
        if self.on_change:
            with errors_logged(_log, "versions.not_in_use_yet"):
                await self.on_change()
        return True


def _tell(decision: VersionDecision) -> None:
    fields = dict[str, object]()
    if figures := decision.figures:
        fields.update(trials=figures.trials, judged=figures.judged)
        for evidence in figures.evidence:
            fields[evidence.measure] = evidence.in_favour, evidence.against
    _log.info(
        "gate.decided" if decision.decided_by == "gate" else "version.decided",
        version=decision.version,
        decision=decision.decision,
        state=decision.to_state,
        reason=decision.reason,
        **fields,
    )
