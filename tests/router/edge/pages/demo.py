"""A gateway of scripted models with demo runs, on a free port: `python -m
tests.router.edge.pages.demo`.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from router.models import Completion, Message, Usage
from router.protocol import Passage, Report
from router.protocol.evidence import NO_EVIDENCE
from router.runs.support import is_supported
from router.trace import Call, Conversation, Event, Execution, Run, Trajectory
from router.trace.run import Feedback, RoleSetting
from router.trace.table import Column, Schema
from router.trace.values import (
    ExecutionOutcome,
    Planned,
    Reported,
    RoundStarted,
    SearchRecord,
    SubQueryDispatched,
    TableRun,
)
from tests.router.deployment import STOP, Deployment, block, report
from tests.router.edge.pages.shown import shown
from tests.router.retriever import FixedRetriever
from tests.router.scripted_tables import SCRIPT
from tests.router.store.stored import call
from tests.router.table.reports import discovery, executed, fill
from tests.scripted_model import ScriptedModel

PEAK = Passage(
    "p1",
    "Mount Orrin",
    "Mount Orrin rises above the valley of Sel. It was first climbed by Ada Brenn, a "
    "teacher from Kestrel. The way up "
    "takes two days.",
    0.91,
    "mountains.pdf",
    12,
)
BRENN = Passage(
    "p2",
    "Ada Brenn",
    "Ada Brenn (1874–1951) taught at the school of Kestrel. She was born in Tarn, and "
    "moved to Kestrel as a child. Her "
    "diaries were found in 1962.",
    0.88,
    "people.jsonl#brenn",
)
KESTREL = Passage(
    "p3",
    "Kestrel",
    "Kestrel is a town of 4,000 on the river Sel. Its school dates from 1820.",
    0.71,
)
QUESTION = "In which town was the first climber of Mount Orrin born?"
FIRST = "Who first climbed Mount Orrin?"
BORN = "Where was Ada Brenn born?"
WHERE = "In which town did Ada Brenn live?"
SYSTEM = Message(
    "system", "You split a question into sub-queries, and stop once their reports suffice."
)
EXECUTE = Message("system", "You search for one sub-query, and report what the passages say of it.")


def execution(
    sub_query: str,
    passages: Sequence[Passage],
    answer: str,
    *evidence: str,
    outcome: ExecutionOutcome = "reported",
    version: str = "executor-000007",
) -> Execution:
    """Return an execution that searched once and then reported."""
    search = Completion(f"<search>{sub_query}</search>", "stop", usage=Usage(180, 12))
    report_turn = Completion(
        f"<answer>{answer}</answer>\n<evidence>{' '.join(evidence)}</evidence>",
        "stop",
        "The passages name her and her town.",
        Usage(460, 40, 128, 9),
    )
    documents = "\n\n".join(f"({passage.title}) {passage.text}" for passage in passages)
    messages = (
        EXECUTE,
        Message("user", sub_query),
        Message("assistant", search.text),
        Message("user", f"<search_results>\n{documents}\n</search_results>"),
        Message("assistant", report_turn.text),
    )
    reported = NO_EVIDENCE if outcome != "reported" else Report(answer, evidence)
    searches = (SearchRecord(sub_query, tuple(passages)),)
    return Execution(
        sub_query,
        reported,
        outcome,
        searches,
        Conversation(messages, (search, report_turn)),
        version,
    )


def answered(
    run_id: str,
    rounds: Sequence[Sequence[Execution]],
    answer: str,
    *,
    at: float = 0.0,
    question: str = QUESTION,
) -> Run:
    """Return a run of these rounds. In the first, a sub-query was dispatched early, a call was
    retried, and a call was wasted.
    """
    calls = list[Call]()
    events = list[Event]()
    messages = [SYSTEM, Message("user", question)]
    outputs = []
    now = at
    number = 0
    message_counts = list[int]()

    def book(
        role: str,
        start: float,
        duration_s: float,
        sub_query_index: int | None = None,
        **fields: Any,
    ) -> None:
        reasons: dict[str, Any] = {
            "role": role,
            "sub_query_index": sub_query_index,
            "started_at": start,
            "duration_s": duration_s,
        }
        reasons |= {
            "model": {"delegation": "backbone-32b", "execution": "small-1b"}.get(
                role, "answerer-8b"
            )
        }
        reasons |= {
            "deployment": f"http://10.0.0.{len(role)}:8000/v1",
            "first_token_s": round(duration_s / 4, 3),
        }
        reasons |= {"executor_version": "executor-000007" if role == "execution" else None}
        usage = Usage(620, 48, 512) if role == "delegation" else Usage(460, 40, 128, 9)
        calls.append(
            call(run_id, len(calls), **{**reasons, "usage": usage, "nano_usd": 410_000, **fields})
        )

    for at_round, block_of in enumerate(rounds, 1):
        events.append(RoundStarted(at_round))
        decision = Completion(
            block(*(done.sub_query for done in block_of)), "stop", usage=Usage(620, 48, 512)
        )
        outputs.append(decision)
        messages.append(Message("assistant", decision.text))
        message_counts.append(len(messages))
        book("delegation", now, 0.9)
        end = now + 0.9
        for current in block_of:
            begins_at = end - 0.45 if number == 0 else end + 0.02 * number
            events.append(SubQueryDispatched(number, at_round, current.sub_query))
            if number == 1:
                book(
                    "execution",
                    begins_at,
                    0.3,
                    number,
                    outcome="unavailable",
                    usage=None,
                    nano_usd=None,
                )
                begins_at += 0.5
                book("execution", begins_at, 0.5, number, purpose="retry", attempt=2)
            else:
                book("execution", begins_at, 0.5, number)
            book("execution", begins_at + 0.75, 0.6 + 0.1 * number, number)
            if number == 0:
                book("execution", end - 0.3, 0.5, len(rounds[0]), outcome="wasted")
            events.append(Reported(number, current))
            number += 1
        now = max(made.started_at + made.duration_s for made in calls) + 0.05
        reports = "\n".join(f"{done.sub_query}: {done.report.answer}" for done in block_of)
        messages.append(Message("user", f"<results>\n{reports}\n</results>"))
    outputs.append(Completion(STOP, "stop", usage=Usage(700, 9, 640)))
    book("delegation", now, 0.4)
    book("answer", now + 0.45, 0.7)
    executions = tuple(itertools.chain.from_iterable(rounds))
    pairs = "\n".join(
        f"<sub_query>{done.sub_query}</sub_query> {done.report.answer}" for done in executions
    )
    answer_turn = Completion(
        f"<answer>{answer}</answer>", "stop", "Both reports agree.", Usage(300, 14, None, 5)
    )
    result = Trajectory(
        answer,
        "answered",
        executions,
        tuple(map(len, rounds)),
        tuple(message_counts),
        Conversation((*messages, Message("assistant", STOP)), tuple(outputs)),
        Conversation(
            (Message("system", "Answer from the reports."), Message("user", pairs)), (answer_turn,)
        ),
    )
    result = replace(result, unsupported=not is_supported(question, result))
    settings: dict[str, RoleSetting] = {
        role: RoleSetting(model, sha256(model.encode()).hexdigest())
        for role, model in (
            ("delegation", "backbone-32b"),
            ("execution", "small-1b"),
            ("answer", "answerer-8b"),
        )
    }
    return Run(
        run_id, "answer", question, "finished", "", result, settings, tuple(calls), at,
        now + 1.2 - at,
        events=tuple(events), tenant="acme",
    )  # fmt: skip


def table(run_id: str, at: float = 0.0) -> Run:
    """Return a table with cells in all states but one."""
    krurou = "Krurou: Krurou was founded in 1200 by Ana. It is old."
    script = (
        *SCRIPT,
        (
            fill("krurou", "founder", attempt=2),
            executed("founder: Ana", "History: Ana founded Krurou."),
        ),
        (
            fill("bel", "founder", "founded", attempt=2),
            executed("founded: 950", "Old Bel: Bel was founded in 950."),
        ),
        (
            discovery(3),
            executed("- Sel\n- Tarn", "Coast: The towns Sel and Tarn are on the coast."),
        ),
        (
            fill("sel", "founder", "founded"),
            executed("founder: not found\nfounded: not found", krurou),
        ),
        (fill("sel", "founder", "founded", attempt=2), executed("founder: not found", krurou)),
    )
    schema = Schema((Column("city", key=True), Column("founder"), Column("founded", "date")))
    events: list[Event] = [Planned(schema.columns)]
    for number, (ask, ran) in enumerate(script):
        events += [
            SubQueryDispatched(number, 1, f"{ask.kind} {number}", ask),
            Reported(number, ran),
        ]
    calls = [
        call(
            run_id, n, sub_query_index=n, started_at=at + 0.3 * n, model="small-1b", nano_usd=90_000
        )
        for n in range(len(script))
    ]
    result = TableRun(schema, (), tuple(ask for ask, _ in script), tuple(ran for _, ran in script))
    return Run(
        run_id, "table", "The towns of Vorland with their founders", "finished", "", result, {},
        tuple(calls), at, 3.4,
        events=tuple(events), tenant="acme",
    )  # fmt: skip


def managed(run_id: str, at: float) -> Run:
    """Return a run with a step that a manager gave to two workers."""
    workers = [
        execution(FIRST, (PEAK,), "Ada Brenn", "It was first climbed by Ada Brenn."),
        execution(BORN, (BRENN,), "Tarn", "She was born in Tarn."),
    ]
    plain = answered(run_id, [workers], "Tarn", at=at)
    assert isinstance(plain.result, Trajectory)
    step = execution(QUESTION, (), "Tarn", "She was born in Tarn.")
    led = replace(step, manager="browser", work=replace(plain.result, answering=None))
    calls = [
        call
        if call.sub_query_index is None
        else replace(call, sub_query_index=0, worker=call.sub_query_index, manager="browser")
        for call in plain.calls
    ]
    calls[0] = replace(calls[0], duration_s=0.2)
    own = replace(
        calls[0],
        number=len(calls),
        sub_query_index=0,
        manager="browser",
        started_at=at + 0.2,
        duration_s=0.3,
    )
    result = replace(plain.result, executions=(led,), rounds=(1,), topology="host")
    events = (RoundStarted(1), SubQueryDispatched(0, 1, QUESTION), Reported(0, led))
    settings = {**plain.settings, "managers.browser": RoleSetting("backbone-32b", "1" * 64)}
    return replace(plain, result=result, calls=(*calls, own), events=events, settings=settings)


def runs() -> list[Run]:
    """Return a run with a right answer, a run lost by each role, and a table."""
    now = time.time() - 3600
    climbed = execution(
        FIRST, (PEAK,), "Ada Brenn", "It was first climbed by Ada Brenn, a teacher from Kestrel."
    )
    born = execution(BORN, (BRENN, KESTREL), "Tarn", "She was born in Tarn.")
    missed = execution(
        BORN, (BRENN, KESTREL), "Kestrel", "Ada Brenn taught at the school of Kestrel."
    )
    lived = execution(WHERE, (KESTREL,), "Kestrel", "Kestrel is a town of 4,000 on the river Sel.")
    unreported = execution("Where is Mount Orrin?", (), "", outcome="no_report")
    return [
        managed("run-managers", now - 60),
        answered("run-right", [[climbed, unreported], [born]], "Tarn", at=now),
        answered("run-reading", [[climbed, unreported], [missed]], "Kestrel", at=now + 60),
        answered("run-answering", [[climbed, unreported], [born]], "Kestrel", at=now + 120),
        answered("run-delegation", [[climbed, lived]], "Kestrel", at=now + 180),
        answered("run-executor", [[climbed, unreported]], "Kestrel", at=now + 240),
        table("run-table", now + 300),
    ]


async def serve() -> None:
    """Listen, print the address, and serve until the standard input ends."""
    passages = {FIRST: [PEAK], BORN: [BRENN, KESTREL], "Tarn": [BRENN]}
    deployment = Deployment(
        ScriptedModel(
            lambda prompt: {2: block(FIRST), 4: block(BORN)}.get(len(prompt.messages), STOP),
            "backbone-32b",
        ),
        ScriptedModel(_executes, "small-1b"),
        ScriptedModel(lambda _prompt: "<answer>Tarn</answer>", "answerer-8b"),
        retriever=FixedRetriever(passages),
    )
    async with shown(
        deployment,
        runs(),
        retriever=FixedRetriever(passages),
    ) as pages:
        for run_id in ("run-reading", "run-answering", "run-delegation", "run-executor"):
            await pages.store.add_feedback(
                Feedback(run_id, False, None, "Tarn", "Kestrel is where she lived.")
            )
        print(pages.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _executes(prompt: Any) -> str:
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    return (
        report("Ada Brenn", PEAK.text[44:106])
        if sub_query == FIRST
        else report("Tarn", "She was born in Tarn.")
    )


if __name__ == "__main__":
    asyncio.run(serve())
