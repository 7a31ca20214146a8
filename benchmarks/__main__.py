"""`rolegate bench`, or `python -m benchmarks`: measure the quality, cost, speed and reliability of
answers and tables.
"""

import importlib
import sys
from collections.abc import Sequence

from rolegate.client import GatewayError

from benchmarks import harness
from router.errors import RolegateError
from serving.cli.command import chosen_command
from serving.files import private_files
from serving.terminal import complain

BENCHMARKS = {
    "mini": (
        "mini",
        "exact match on questions about an unseen fictional world, and the loss of each role",
    ),
    "retrieval": (
        "retrieval",
        "share of the needed evidence that dense, lexical and fused retrieval find",
    ),
    "large-index": (
        "large_index",
        "time, memory, recall and speed of large indexes of several FAISS types",
    ),
    "datasets": ("datasets.command", "count, check, sample and convert public data sets"),
    "sweep": (
        "study.sweep",
        "answer one set of questions with a grid of backbones, executors and topologies; resumable",
    ),
    "report": ("study.report", "write the TBSS paper's tables and figures from a sweep's results"),
    "cost": (
        "study.cost",
        "cost of logged runs by role, and an estimate of their cost with other models",
    ),
    "mini-study": (
        "study.mini_study",
        "the TBSS paper's study in miniature: models of three sizes in every role",
    ),
    "widesearch": (
        "widesearch.command",
        "score tables on WideSearch tasks, by WideSearch's rules and by stricter ones",
    ),
    "made-tables": (
        "made_tables",
        "how many of the tables that `sft tables` keeps are right",
    ),
    "filtering": (
        "filtering",
        "train executors on filtered and on unfiltered trajectories, and compare them",
    ),
    "marl-mini": (
        "marl_mini.command",
        "multi-agent reinforcement learning with a tiny model, with ablations",
    ),
    "loop": (
        "loop",
        "train an executor version from logged traffic, promote it, and roll back a bad version",
    ),
    "overhead": (
        "overhead",
        "CPU, time and memory of the gateway, compared with minimal pipelines and LiteLLM",
    ),
    "early-dispatch": (
        "early_dispatch",
        "time saved by dispatching sub-queries while the delegator is still writing",
    ),
    "reliability": (
        "reliability.command",
        "check that nothing is lost, late or booked wrongly while upstreams and gateways fail",
    ),
}
"""Module and summary of each benchmark, by its command."""


@private_files()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    summaries = {name: summary for name, (_, summary) in BENCHMARKS.items()}
    name = chosen_command("bench", __doc__, summaries, given)
    module = importlib.import_module(f"benchmarks.{BENCHMARKS[name][0]}")
    try:
        return harness.run(name, module, given[1:])
    except (RolegateError, GatewayError) as error:
        complain(f"rolegate bench: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
