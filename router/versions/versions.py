"""Versions of the executor: registering them, using them, and taking them out of service, by an
operator or by the gate.
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
    """Collects changes of versions with their reasons. Nothing is stored until a book takes the
    draft.
    """

    def __init__(
        self,
        versions: Sequence[ExecutorVersion],
        decided_by: DecidedBy,
        figures: TrialFigures | None = None,
    ) -> None:
        """`versions`: all stored versions. `figures`: the grounds of the decisions."""
        self.expected = tuple(versions)
        self.decisions = list[VersionDecision]()
        self._by = decided_by
        self._figures = figures
        self._now = {version.version: version for version in versions}

    @property
    def changed(self) -> list[ExecutorVersion]:
        """The versions to replace."""
        return [
            self._now[version.version]
            for version in self.expected
            if self._now[version.version] != version
        ]

    def in_state(self, *states: VersionState) -> ExecutorVersion | None:
        """Return the version that is in one of these states now."""
        return next((version for version in self._now.values() if version.state in states), None)

    def find(self, name: str) -> ExecutorVersion:
        """Return a version by its name. Raises `BadRequest`."""
        if name not in self._now:
            raise BadRequest(
                f"version {name!r}: is not registered; register it, or list those that are."
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
        """Move a version into a state. If it is in that state already, only its share changes, and
        its trial continues.
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
        """Make a version the active one, and retire the previous one."""
        if active := self.in_state("active"):
            self.move(active, "retired", "retire", f"{version.version} is active now.")
        self.move(version, "active", "promote", reason)

    def roll_back(self, version: ExecutorVersion) -> None:
        """Take a version out of service. After an active version, the last one that was retired
        becomes active. Raises `BadRequest` if the version is not in service or no version was
        retired.
        """
        if version.state not in ("shadow", "canary", "active"):
            raise BadRequest(
                f"version {version.version!r}: is {version.state}; only a shadow, a canary or the "
                "active version can be rolled back."
            )
        self.move(version, "rolled_back", "roll_back")
        if version.state == "active":
            retired = [other for other in self._now.values() if other.state == "retired"]
            if not retired:
                raise BadRequest(
                    f"version {version.version!r}: there is no retired version to return to; "
                    "promote another one."
                )
            before = max(retired, key=lambda version: version.state_at)
            self.move(before, "active", "promote", f"{version.version} was rolled back.")


_log = structlog.get_logger("versions")
_NAME = re.compile(r"executor-[0-9]{6,}")
_ATTEMPTS = 5
MAX_DECISIONS = 1000
"""Max decisions read in one call."""
_NO_HELD_OUT = (
    "To be promoted, it also has to pass held-out questions: name a file of them in "
    "versions.held_out, or promote it yourself."
)


class Examination(Protocol):
    """Held-out questions for two versions; see `HeldOutTest`."""

    size: int

    async def compare(
        self,
        candidate: str,
        active: str,
        since: float,
    ) -> list[tuple[bool, bool]]:
        """Return for each question whether the candidate and whether the active version is
        right.
        """


class Versions:
    """Decides which versions serve which runs. Every method raises `StoreFailed`."""

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
        """`load`: verifies a published version, loads it into the engines, and returns its manifest
        as JSON; raises `BadVersion`. `gate`: None leaves every decision to operators.
        `canary_share`: the share of the runs for a shadow that becomes a canary. `on_change`:
        awaited after a version has changed its state; its errors are logged. `held_out`: the test
        that a canary must pass before it is promoted; None: only operators promote.
        """
        self._book = book
        self._load = load
        self._gate = gate
        self._canary_share = canary_share
        self._noted: tuple[str, float, TrialFigures] | None = None
        self._on_change = on_change
        self._held_out = held_out
        self._compared: dict[tuple[str, str, float], list[tuple[bool, bool]]] = {}
        """Results of the held-out questions, by candidate, active version and start of the
        trial.
        """

    async def traffic(self) -> Traffic:
        """Return the versions in use. Raises `BadVersion` if no version is active."""
        traffic = traffic_of(await self._book.versions())
        if traffic is None:
            raise BadVersion("no version of the executor is active; promote one.")
        return traffic

    async def figures(self, version: ExecutorVersion) -> TrialFigures | None:
        """Return a version's figures in its trial; None if it is not on trial."""
        if version.state not in ("shadow", "canary"):
            return None
        pairs = await self._book.pairs(version.version, version.state, version.state_at)
        return await asyncio.to_thread(figures_of, pairs, self._gate, version.state)

    async def decisions(
        self, version: str | None = None, after: int = 0
    ) -> Sequence[VersionDecision]:
        """Return the decisions on one version or on all, with numbers above `after`: oldest first,
        at most `MAX_DECISIONS`.
        """
        return await self._book.decisions(version, after, MAX_DECISIONS)

    async def ensure_base(self, name: str, manifest: str = "") -> None:
        """Make the version that the config names the active one, if there is none. `manifest`:
        empty for a plain model.
        """

        def plan(draft: VersionDraft) -> None:
            if draft.in_state("active") is None:
                reason = "It is what the config names, and no version was active."
                draft.promote(draft.find(name), reason)

        if all(version.version != name for version in await self._book.versions()):
            with suppress(BadRequest):  # another gateway was faster
                await self._add(name, manifest, "config", "The config names it.")
        await self._change(plan, "config")

    async def register(self, name: str) -> ExecutorVersion:
        """Load a published version and store it. Raises `BadRequest` for an invalid or used name,
        and what `load` raises.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest(f"version {name!r}: is no valid name; use one like executor-000001.")
        if any(version.version == name for version in await self._book.versions()):
            raise BadRequest(f"version {name!r}: is registered already; names are used once.")
        return await self._add(name, await self._load(name), "operator")

    async def set_traffic(
        self,
        name: str,
        state: VersionState,
        share: float = 0.0,
    ) -> ExecutorVersion:
        """Put a version into a state: `shadow` runs it alongside the active one, `canary` gives it
        a share of the runs (more than 0, at most 1), `registered` takes it out of use. It replaces
        any other version on trial. Raises `BadRequest`, and what `load` raises.
        """
        if state not in ("registered", "shadow", "canary"):
            raise BadRequest(f"state must be registered, shadow or canary, got {state}.")
        if state == "canary" and not 0 < share <= 1:
            raise BadRequest(f"canary_share must be above 0 and at most 1, got {share:g}.")
        if state != "canary" and share != 0:
            raise BadRequest(f"canary_share must be 0 unless state is canary, got {share:g}.")

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
        """Take a version on trial, or the active one, out of service, and return the active
        version. Raises `BadRequest`, also if there is no previous version to return to.
        """
        draft = await self._change(lambda draft: draft.roll_back(draft.find(name)), "operator")
        return draft.in_state("active")

    async def review(self) -> None:
        """Let the gate decide on the version on trial. If another process changes versions
        meanwhile, nothing changes, and the next review decides.
        """
        versions = await self._book.versions()
        traffic = traffic_of(versions)
        if (
            self._gate is None
            or traffic is None
            or traffic.candidate is None
            or traffic.stage is None
        ):
            return
        candidate = next(version for version in versions if version.version == traffic.candidate)
        pairs = await self._book.pairs(candidate.version, traffic.stage, candidate.state_at)
        verdict, figures, reason = await asyncio.to_thread(decide, pairs, self._gate, traffic.stage)
        trial = candidate.version, traffic.active, candidate.state_at
        passed = verdict == "promote" and traffic.stage == "canary"
        if passed:
            over = len(pairs) >= self._gate.max_trials
            verdict, held_out_reason = self._examined(self._gate, trial, figures, over=over)
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
                await self._book.wait(draft.decisions[-1])
                self._noted = noted
                _tell(draft.decisions[-1])
            if passed and self._held_out and trial not in self._compared:
                self._compared[trial] = await self._held_out.compare(*trial)
                await self.review()  # again, with their results
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
                self._canary_share,
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
        """Return the decision on a canary that has passed its trial, by held-out questions, and the
        reason; `wait` until they have been asked. `over`: no more trials follow.
        """
        if self._held_out is None:
            return "stop" if over else "wait", _NO_HELD_OUT
        if trial in self._compared:
            return on_held_out(self._compared[trial], gate)
        tokens = (figures.tokens + figures.active_tokens) // figures.trials * self._held_out.size
        return "wait", (
            f"Both versions are asked {self._held_out.size} held-out questions now, for about "
            f"{tokens:,} executor tokens and what leads them, booked to {DEFAULT_TENANT}."
        )

    async def list(self) -> "list[tuple[ExecutorVersion, TrialFigures | None]]":
        """Return all versions, newest first, each with its figures; None for those not on trial."""
        return [(version, await self.figures(version)) for version in await self._book.versions()]

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
        await self._book.add(version, decision)
        _tell(decision)
        return version

    async def _check_loaded(self, name: str) -> None:
        """Load a registered version. Raises `BadVersion` if its files have changed since it was
        registered.
        """
        manifest = VersionDraft(await self._book.versions(), "operator").find(name).manifest
        if manifest and await self._load(name) != manifest:
            raise BadVersion(
                f"{name}: has changed since it was registered; names are used once, so publish it "
                "as the next one."
            )

    async def _change(
        self, plan: Callable[[VersionDraft], None], decided_by: DecidedBy
    ) -> VersionDraft:
        """Carry out a plan; repeat it if another process was faster."""
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
