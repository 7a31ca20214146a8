"""A store with an example of all that pages show."""

import random
import time
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from router.access import Tenant
from router.models import Usage
from router.store import Database, SQLAccounts, SQLArchive, SQLVersionBook
from router.store.schema import SPENDING
from router.trace import Call, Run
from router.trace.run import Feedback
from router.versions import ExecutorVersion, VersionDecision
from router.versions.book import Judgement, Side, Trial
from tests.router.store.stored import ANSWER, call, put, run

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \u202egnorw\u202c \u2066x {{ 7*7 }} "
    "'\" --> ]]> &amp; \x1b[2J"
)
ACTIVE = "executor-000001"
CANDIDATE = "executor-000002"
QUESTIONS = (
    "When was the director of Heat born?",
    (
        "Which river flows through the capital of the country where the painter of The Night "
        "Watch died?"
    ),
    (
        "In which year did the founder of the university that Ada Lovelace's daughter's "
        "husband attended become a bishop?"
    ),
    "Who wrote it?",
)
ROLES: tuple[dict[str, Any], ...] = (
    {
        "role": "delegation",
        "model": "backbone-large",
        "executor_version": None,
        "nano_usd": 2_400_000,
    },
    {"role": "execution", "model": "mini", "executor_version": ACTIVE, "nano_usd": 110_000},
    {"role": "execution", "model": "mini", "executor_version": CANDIDATE, "nano_usd": 90_000},
    {"role": "answer", "model": "answerer", "executor_version": None, "nano_usd": 700_000},
)


def _calls(run_id: str, tenant: str, at: float, luck: random.Random) -> list[Call]:
    return [
        call(
            run_id,
            number,
            tenant=tenant,
            started_at=at,
            usage=Usage(luck.randint(200, 4000), 90, 100),
            **fields,
        )
        for number, fields in enumerate(ROLES)
    ]


async def fill(database: Database, tenants: tuple[str, ...]) -> list[Run]:
    """Store runs of the last day, with a hostile one, feedback, quotas, and a version on trial;
    return them newest first.
    """
    luck = random.Random(0)
    now = time.time()
    runs = list[Run]()
    for number in range(120):
        run_id = f"run-{number:04}"
        tenant = tenants[number % len(tenants)]
        at = now - 60 - number * 700
        fields: dict[str, Any] = {
            "request": QUESTIONS[number % len(QUESTIONS)],
            "duration_s": 1 + 9 * luck.random(),
        }
        if number % 9 == 4:
            fields |= {
                "status": "failed",
                "result": None,
                "error": "UpstreamUnavailable: no replica of the executor answers",
                "events": (),
            }
        if number % 7 == 3:
            fields |= {
                "result": msgspec.structs.replace(ANSWER, answer="not found", outcome="not_found")
            }
        if number == 2:
            hostile = msgspec.structs.replace(ANSWER, answer=HOSTILE)
            fields |= {"request": HOSTILE, "result": hostile, "request_id": HOSTILE}
        runs.append(run(run_id, at, _calls(run_id, tenant, at, luck), tenant=tenant, **fields))
    await put(database, *runs)
    archive = SQLArchive(database)
    accounts = SQLAccounts(database)
    for number in (1, 5, 6, 10):
        await archive.add_feedback(Feedback(f"run-{number:04}", number != 5, comment=HOSTILE))
    for tenant in tenants:
        await accounts.set_tenant(
            Tenant(tenant, tokens_per_day=2_000_000, nano_usd_per_month=50_000_000_000)
        )
    for number, tenant in enumerate(tenants):
        day, month = (time.strftime(form, time.gmtime(now)) for form in ("%Y-%m-%d", "%Y-%m"))
        rows = [
            {
                "tenant": tenant,
                "period": period,
                "requests": 60,
                "tokens": 800_000 + number * 1_150_000,
                "nano_usd": 7_120_000_000,
            }
            for period in (day, month)
        ]
        await database.write(partial(_insert, rows=rows))
    await _try(SQLVersionBook(database), luck, now)
    return runs


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    connection.execute(SPENDING.insert(), rows)


async def _try(book: SQLVersionBook, luck: random.Random, now: float) -> None:
    """Store a candidate in the canary stage that is better, without enough evidence yet."""
    for name, state, share in ((ACTIVE, "active", 0.0), (CANDIDATE, "canary", 0.2)):
        version = ExecutorVersion(name, state, share, now - 80_000, now - 90_000)  # type: ignore[arg-type]
        await book.add(
            version,
            VersionDecision(name, "register", None, state, "operator", now - 90_000, HOSTILE),  # type: ignore[arg-type]
        )
    for number in range(110):
        run_id = f"run-{number:04}"
        served = number % 2 == 0
        sides = Side("a", luck.random() < 0.02, 700), Side("b", luck.random() < 0.1, 1000)
        await book.add_trial(
            Trial(run_id, CANDIDATE, ACTIVE, "canary", served, *sides, now - 70_000 + number)
        )
        if number % 3:
            await book.judge(
                run_id, Judgement(luck.random() < 0.8, luck.random() < 0.6, "operator")
            )
