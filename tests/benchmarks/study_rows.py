"""Made-up rows of a sweep."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.study.results import PLAN, RESULTS, KeptPlan, QuestionResult
from router.trace.call import RoleTotal

MODELS = {"small": 1e9, "middle": 4e9, "large": 30e9}


def total(role: str = "execution", tokens: int = 100, **fields: object) -> RoleTotal:
    """Return the spending of a role on one answer."""
    known: dict[str, object] = dict.fromkeys(RoleTotal.__struct_fields__, 0)
    known |= {
        "role": role,
        "model": "m",
        "attempts": 1,
        "prompt_tokens": tokens,
        "nano_usd": tokens * 1000,
    }
    known |= {"cached_tokens": None, "reasoning_tokens": None, "manager": ""}
    return msgspec.convert(known | fields, RoleTotal)


def row(question: str = "q1", **fields: object) -> QuestionResult:
    """Return a rollout with a right answer, changed by `fields`."""
    known: dict[str, object] = {
        "cell": "large + small",
        "topology": "factorized",
        "backbone": "large",
        "executor": "small",
        "dataset": "films",
        "question_id": question,
        "question": "Where?",
        "golds": ("Paris",),
        "rollout": 0,
        "answer": "Paris",
        "outcome": "answered",
        "exact_match": True,
        "f1": 1.0,
        "judged": True,
        "accepted": True,
        "searches": (1,),
        "spent": (total(),),
        "latency_s": 1.0,
        "lost_by": None,
        "index": "index-1",
    }
    return QuestionResult(**(known | fields))  # type: ignore[arg-type]


def grid(folder: Path) -> Path:
    """Write a sweep over 8 questions with two rollouts each and return its folder. Larger backbones
    answer more, and larger executors a little more.
    """
    pairs = [("large", executor) for executor in reversed(MODELS)]
    pairs += [("small", "large"), ("small", "small"), ("middle", "small")]
    cells: list[tuple[str, str | None]] = [*pairs, *((model, None) for model in MODELS)]
    return written(
        folder,
        [
            _answered(*cell, number, repetition)
            for cell in cells
            for number in range(8)
            for repetition in (0, 1)
        ],
    )


def written(
    folder: Path, rows: Sequence[QuestionResult], questions: int = 8, rollouts: int = 2
) -> Path:
    """Write a sweep with these rows and return its folder."""
    folder.mkdir(exist_ok=True)
    question_ids = sorted({rollout.question_id for rollout in rows})
    unasked = [f"not asked yet {number}" for number in range(questions - len(question_ids))]
    plan = KeptPlan(
        "Made up",
        (*question_ids, *unasked),
        rollouts,
        (*dict.fromkeys(rollout.cell for rollout in rows),),
        {**MODELS},
    )
    (folder / PLAN).write_bytes(msgspec.json.encode(plan))
    (folder / RESULTS).write_bytes(msgspec.json.Encoder().encode_lines(rows))
    return folder


def _answered(backbone: str, executor: str | None, number: int, rollout: int) -> QuestionResult:
    skill = {"small": 0, "middle": 2, "large": 4}
    right = number + rollout < skill[backbone] + (skill[executor] // 2 if executor else 0) + 1
    lost_by = "delegation" if number % 3 else "reading"
    spent = (
        total("delegation", 50),
        *((total("execution", 100 * (1 + skill[executor])),) if executor else ()),
    )
    return row(
        f"q{number}",
        cell=f"{backbone} + {executor}" if executor else f"single_agent: {backbone}",
        topology="factorized" if executor else "single_agent",
        backbone=backbone,
        executor=executor or "",
        dataset="films" if number % 2 else "books",
        rollout=rollout,
        exact_match=right,
        f1=float(right),
        accepted=right,
        lost_by=None if right or not executor else lost_by,
        spent=spent,
    )
