"""Rows of a sweep, made up."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.study.provenance import Provenance, RoleProvenance
from benchmarks.study.result_row import Attribution, Loss, Scored
from benchmarks.study.results import RESULTS
from benchmarks.study.study_data import PLAN, KeptPlan
from router.trace.call import RoleTotal
from router.trace.values import TopologyName

MODELS = {"small": 1e9, "middle": 4e9, "large": 30e9}
MADE_BY = Provenance(
    roles={"delegation": RoleProvenance("m", "5d41402abc4b2a76b9719d911017c592", 512, 0.3, 0.95, None)},
    embedder="minilm",
    corpus_sha256="7d793037a0760186574b0282f2f435e7",
    index="index-1",
    top_k=3,
    max_rounds=3,
    max_sub_queries=4,
    max_turns=3,
    max_searches=3,
    versions={"python": "3.12.1"},
    seed=0,
)


def total(role: str = "execution", tokens: int = 100, **fields: object) -> RoleTotal:
    """What a role has spent on one answer."""
    known: dict[str, object] = {
        "role": role,
        "model": "m",
        "attempts": 1,
        "attempts_without_usage": 0,
        "attempts_without_cost": 0,
        "prompt_tokens": tokens,
        "completion_tokens": 0,
        "cached_tokens": None,
        "reasoning_tokens": None,
        "wasted_tokens": 0,
        "nano_usd": tokens * 1000,
    }
    return msgspec.convert(known | fields, RoleTotal)


def row(question: str = "q1", **fields: object) -> Scored:
    """A rollout whose answer is right, but for `fields`."""
    known: dict[str, object] = {
        "cell": "large + small",
        "topology": "factorized",
        "backbone": "large",
        "executor": "small",
        "max_turns": 3,
        "dataset": "films",
        "question_id": question,
        "rollout": 0,
        "answer": "Paris",
        "outcome": "answered",
        "exact_match": True,
        "f1": 1.0,
        "folded_exact_match": True,
        "folded_f1": 1.0,
        "judged": True,
        "accepted": True,
        "rounds": 1,
        "searches": (1,),
        "failed": 0,
        "spent": (total(),),
        "checking": (),
        "latency_s": 1.0,
        "attribution": None,
    }
    return Scored(**(known | fields))  # type: ignore[arg-type]


def lost(by: Loss) -> Attribution:
    """A wrong answer that this role lost."""
    return Attribution(by, "Paris", "Paris")


def grid(folder: Path, *, questions: int = 8) -> Path:
    """The folder of a sweep in which larger backbones answer more, and larger executors a little more."""
    pairs = [("large", executor) for executor in reversed(MODELS)]
    pairs += [("small", "large"), ("small", "small"), ("middle", "small")]
    cells: list[tuple[TopologyName, str, str | None, str]] = [
        ("factorized", backbone, executor, f"{backbone} + {executor}") for backbone, executor in pairs
    ]
    cells += [("single_agent", model, None, f"single_agent: {model}") for model in MODELS]
    skill = {"small": 0, "middle": 2, "large": 4}
    rows = [
        _answered(cell, number, rollout, skill) for cell in cells for number in range(questions) for rollout in (0, 1)
    ]
    return written(folder, rows, questions, 2)


def written(folder: Path, rows: Sequence[Scored], questions: int, rollouts: int = 1) -> Path:
    """The folder of a sweep with these rows."""
    folder.mkdir(exist_ok=True)
    names = tuple(dict.fromkeys(one.cell for one in rows))
    asked = {one.question_id for one in rows}
    others = (f"not asked yet {number}" for number in range(questions - len(asked)))
    plan = KeptPlan("Made up", (*sorted(asked), *others), rollouts, names, dict(MODELS))
    (folder / PLAN).write_bytes(msgspec.json.encode(plan))
    made = {"provenance": msgspec.to_builtins(MADE_BY)}
    lines = (msgspec.json.encode(msgspec.to_builtins(one) | made) + b"\n" for one in rows)
    (folder / RESULTS).write_bytes(b"".join(lines))
    return folder


def _answered(
    cell: tuple[TopologyName, str, str | None, str], number: int, rollout: int, skill: dict[str, int]
) -> Scored:
    topology, backbone, executor, name = cell
    right = number + rollout < skill[backbone] + (skill[executor] // 2 if executor else 0) + 1
    spent = (total("delegation", 50), *((total("execution", 100 * (1 + skill[executor])),) if executor else ()))
    return row(
        f"q{number}",
        cell=name,
        topology=topology,
        backbone=backbone,
        executor=executor,
        dataset="films" if number % 2 else "books",
        rollout=rollout,
        exact_match=right,
        f1=float(right),
        accepted=right,
        attribution=None if right or not executor else lost("delegation" if number % 3 else "reading"),
        spent=spent,
    )
