"""Baselines in which a model writes a whole table, as in the papers WideSeek-R1 (section 3) and
WideSearch. In the gateway, tables are filled cell by cell, and no model writes them.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from benchmarks.baselines.single_agent import (
    PROMPTS,
    SINGLE_AGENT,
    SingleAgent,
    limits_alone,
    role_alone,
)
from executor_sft.rollout import check_failures
from executor_sft.runtime import Runtime
from router.errors import MalformedOutput, OutOfTime
from router.protocol.turns import ReportTurn
from router.search import Answerer, Delegator, FactorizedSearch, RunContext
from router.search.loop import Loop
from router.table.filling import TABLE_REPORTING
from router.table.table_delegation import described
from router.table.table_text import parse_table_turn, read_rows, to_markdown
from router.trace.table import Column
from serving.config.config import RoleConfig

Writing = Literal["wide_written", "wide_single"]
"""Way to write the table. `wide_written`: the answerer writes the table from the executors'
reports. `wide_single`: the delegator's model works alone; it searches, and writes the table.
"""
SINGLE_WRITER = replace(SINGLE_AGENT, parse=parse_table_turn, stop=("</search>",))
"""Form of the turns in `wide_single`. `</answer>` is not a stop text, because a cell may contain
this text.
"""


def writing(runtime: Runtime, topology: Writing) -> Loop:
    """Return a search whose answer is a whole table. Its limits are those of the gateway's runs for
    tables.
    """
    config = runtime.config
    limits = config.table
    rounds = min(limits.max_rounds, limits.max_tasks)
    a_round = max(1, limits.max_tasks // limits.max_rounds)
    if topology == "wide_single":
        alone = role_alone(config, str(PROMPTS / "wide_single.txt"))
        return SingleAgent(
            runtime.role("delegation", alone),
            runtime.retriever,
            limits_alone(config, rounds, a_round),
            config.search.require_evidence,
            SINGLE_WRITER,
        )

    def prompted(role: RoleConfig, name: str) -> RoleConfig:
        return replace(role, prompt=str(PROMPTS / f"wide_written_{name}.txt"))

    delegation = prompted(config.roles.delegation, "delegation")
    answer = prompted(config.roles.answer, "answer")
    return FactorizedSearch(
        Delegator(runtime.role("delegation", delegation), a_round),
        runtime.executor(),
        Answerer(runtime.role("answer", answer), stop=()),
        max_rounds=rounds,
        require_evidence=config.search.require_evidence,
        width=limits.width,
    )


async def written_table(
    loop: Loop,
    question: str,
    columns: Sequence[Column],
    context: RunContext,
) -> str | None:
    """Run `loop`, and return the written table as Markdown. Return None if no table was written, or
    if the time ran out. Raises `UpstreamError` if an endpoint fails.
    """
    context = replace(context, reporting=TABLE_REPORTING)
    names = ", ".join(map(described, columns))
    try:
        trajectory = await loop.run(f"{question}\n\nColumns, keys with a star: {names}", context)
        check_failures(trajectory, 0, context)
    except (MalformedOutput, OutOfTime):
        return None
    outputs = trajectory.answering.outputs if trajectory.answering else ()
    for output in outputs[-1:]:
        turn = parse_table_turn(output.text, output.finish_reason == "length")
        if isinstance(turn, ReportTurn):
            return to_markdown(columns, read_rows(turn.report.answer, columns).rows)
    return None
