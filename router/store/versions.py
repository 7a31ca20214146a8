"""Storage of executor versions, their trials and the decisions on them in a database."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict
from sqlalchemy import Connection, RowMapping, func, or_, select, true

from router.errors import BadRequest
from router.frozen import Frozen
from router.store.accounts import note
from router.store.database import Database, storable
from router.store.migration import lock
from router.store.schema import (
    EXECUTOR_VERSIONS,
    RUNS,
    SIDES,
    TENANTS,
    VERSION_DECISIONS,
    VERSION_TRIALS,
    struct_of,
    structs,
)
from router.versions import ExecutorVersion, VersionDecision
from router.versions.book import Judgement, Pair, Side, Stage, Trial, TrialFigures

_LOCK = 1
"""Number of the lock on versions and decisions."""
_TRIALS = VERSION_TRIALS.c
_DECISIONS = VERSION_DECISIONS.c
_OF_PAIRS = [
    column
    for column in _TRIALS
    if column.name in Pair.__struct_fields__ + Judgement.__struct_fields__
]


class SQLVersionBook(Frozen):
    """Implements `VersionBook` with a database, which several gateways may share."""

    database: Database

    async def versions(self) -> list[ExecutorVersion]:
        """See `VersionBook.versions`."""
        return await self.database.read(_versions, behind=True)

    async def add(self, version: ExecutorVersion, decision: VersionDecision) -> None:
        """See `VersionBook.add`."""

        def add(connection: Connection) -> None:
            lock(connection, _LOCK)
            if any(known.version == version.version for known in _versions(connection)):
                raise BadRequest(f"version {version.version!r}: exists already; use another name.")
            connection.execute(EXECUTOR_VERSIONS.insert().values(asdict(version)))
            _note(connection, [decision])
            note(connection)

        await self.database.write(add, behind=True)

    async def change(
        self,
        expected: Sequence[ExecutorVersion],
        changed: Sequence[ExecutorVersion],
        decisions: Sequence[VersionDecision],
    ) -> bool:
        """See `VersionBook.change`. Also returns False, without any change, if two versions would
        be active afterwards, or two would be on trial (`shadow` or `canary`).
        """

        def change(connection: Connection) -> bool:
            lock(connection, _LOCK)
            known = {version.version: version for version in _versions(connection)}
            after = known | {version.version: version for version in changed}
            if any(known.get(version.version) != version for version in expected) or not _sound(
                after.values()
            ):
                return False
            for version in changed:
                this = EXECUTOR_VERSIONS.c.version == version.version
                connection.execute(EXECUTOR_VERSIONS.update().where(this).values(asdict(version)))
            _note(connection, decisions)
            note(connection)
            return True

        return await self.database.write(change, behind=True)

    async def wait(self, decision: VersionDecision) -> None:
        """See `VersionBook.wait`. No effect if the version is not in the state `decision.to_state`
        any more.
        """

        def wait(connection: Connection) -> None:
            lock(connection, _LOCK)
            known = {version.version: version.state for version in _versions(connection)}
            if known.get(decision.version) != decision.to_state:
                return
            _note(connection, [decision])
            mine = _DECISIONS.version == decision.version
            decided = select(func.max(_DECISIONS.number)).where(mine, _DECISIONS.decision != "wait")
            notes = select(_DECISIONS.number).where(
                mine, _DECISIONS.number > decided.scalar_subquery()
            )
            *old, _new = connection.scalars(notes.order_by(_DECISIONS.number))
            connection.execute(VERSION_DECISIONS.delete().where(_DECISIONS.number.in_(old)))

        await self.database.write(wait)

    async def decisions(self, version: str | None, after: int, size: int) -> list[VersionDecision]:
        """See `VersionBook.decisions`."""
        wanted = select(VERSION_DECISIONS).where(_DECISIONS.number > after)
        if version is not None:
            wanted = wanted.where(_DECISIONS.version == storable(version))
        rows = wanted.order_by(_DECISIONS.number).limit(size)
        return await self.database.read(
            lambda connection: list(map(_decision, connection.execute(rows).mappings())),
            behind=True,
        )

    async def add_trial(self, trial: Trial) -> None:
        """See `VersionBook.add_trial`. No effect if the run was deleted, or if its tenant has the
        setting `redact`.
        """

        def add(connection: Connection) -> None:
            run = select(RUNS.c.run_id, TENANTS.c.redact).outerjoin(
                TENANTS, TENANTS.c.name == RUNS.c.tenant
            )
            owner = connection.execute(run.where(RUNS.c.run_id == trial.run_id)).one_or_none()
            if owner is None or owner.redact or _trial(connection, trial.run_id) is not None:
                return
            connection.execute(VERSION_TRIALS.insert().values(_row(trial)))

        await self.database.write(add)

    async def trial(self, run_id: str) -> Trial | None:
        """See `VersionBook.trial`."""
        return await self.database.read(_trial, run_id, behind=True)

    async def judge(self, run_id: str, judgement: Judgement) -> None:
        """See `VersionBook.judge`. No effect if the run has no trial."""
        # The alphabetical order of the sources is also their order of trust, see `Source`.
        less_trusted = or_(_TRIALS.source.is_(None), _TRIALS.source < judgement.source)
        trial = VERSION_TRIALS.update().where(_TRIALS.run_id == storable(run_id), less_trusted)
        judged = trial.values(asdict(judgement) | {"judged_at": time.time()})
        await self.database.write(lambda connection: connection.execute(judged))

    async def pairs(self, version: str, stage: Stage, since: float) -> list[Pair]:
        """See `VersionBook.pairs`."""
        active = (
            select(EXECUTOR_VERSIONS.c.version)
            .where(EXECUTOR_VERSIONS.c.state == "active")
            .scalar_subquery()
        )
        wanted = (
            select(*_OF_PAIRS)
            .join(RUNS, RUNS.c.run_id == _TRIALS.run_id)
            .outerjoin(TENANTS, TENANTS.c.name == RUNS.c.tenant)
            .where(_TRIALS.candidate == version, _TRIALS.stage == stage, _TRIALS.ended_at >= since)
            .where(_TRIALS.active == active, func.coalesce(TENANTS.c.training, true()))
            .order_by(_TRIALS.ended_at, _TRIALS.run_id)
        )
        return await self.database.read(
            lambda connection: list(map(_pair, connection.execute(wanted).mappings())), behind=True
        )


def _versions(connection: Connection) -> list[ExecutorVersion]:
    versions = EXECUTOR_VERSIONS.c
    newest_first = select(EXECUTOR_VERSIONS).order_by(
        versions.registered_at.desc(), versions.version.desc()
    )
    return structs(connection, ExecutorVersion, newest_first)


def _sound(versions: Iterable[ExecutorVersion]) -> bool:
    states = [version.state for version in versions]
    return states.count("active") <= 1 and states.count("shadow") + states.count("canary") <= 1


def _note(connection: Connection, decisions: Iterable[VersionDecision]) -> None:
    last = connection.scalar(select(func.max(_DECISIONS.number))) or 0
    for number, decision in enumerate(decisions, last + 1):
        figures = (
            None if decision.figures is None else msgspec.json.encode(decision.figures).decode()
        )
        row = {**asdict(decision), "number": number, "figures": figures}
        connection.execute(VERSION_DECISIONS.insert().values(row))


def _decision(row: RowMapping) -> VersionDecision:
    figures = (
        None if row["figures"] is None else msgspec.json.decode(row["figures"], type=TrialFigures)
    )
    return struct_of(VersionDecision, row, figures=figures)


def _row(trial: Trial) -> dict[str, object]:
    row: dict[str, Any] = asdict(trial)
    for name in SIDES:
        side = asdict(row.pop(f"by_{name}"))
        row |= {f"{name}_{what}": value for what, value in side.items()}
        row[f"{name}_answer"] = storable(side["answer"])
    return row


def _pair(row: RowMapping) -> Pair:
    judged = None if row["judged_at"] is None else struct_of(Judgement, row)
    return struct_of(Pair, row, judgement=judged)


def _trial(connection: Connection, run_id: str) -> Trial | None:
    rows = connection.execute(
        select(VERSION_TRIALS).where(_TRIALS.run_id == storable(run_id))
    ).mappings()
    if (row := rows.one_or_none()) is None:
        return None
    sides = {
        f"by_{name}": {what: row[f"{name}_{what}"] for what in Side.__struct_fields__}
        for name in SIDES
    }
    return struct_of(Trial, row, **sides)
