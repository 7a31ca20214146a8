"""`rolegate bench`, or `python -m benchmarks`: what answers cost and how good they are."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from rolegate.client import GatewayError

from benchmarks import harness
from router.errors import RolegateError
from serving.files import private_files
from serving.terminal import complain

BENCHMARKS = {
    "mini": (
        "mini",
        (
            "a held-out mini world through real vLLM and retrieval: exact match, and which "
            "role loses what"
        ),
    ),
    "retrieval": (
        "retrieval",
        (
            "how much of the gold evidence dense, lexical and fused retrieval find, and "
            "searches under load"
        ),
    ),
    "datasets": (
        "datasets.command",
        "what is in the files of public data sets, what is wrong with them, and samples of them",
    ),
    "sweep": (
        "study.sweep",
        "a grid of backbones, executors and topologies on the same questions; goes on after a kill",
    ),
    "report": (
        "study.report",
        (
            "the paper's tables and figures from a sweep, with what answers cost and which "
            "role loses them"
        ),
    ),
    "cost": (
        "study.cost",
        "what logged traffic cost, by role, and what it would have cost with other models",
    ),
    "mini-study": (
        "study.mini_study",
        "the paper's study in miniature: models of three sizes in every role",
    ),
    "widesearch": (
        "widesearch.command",
        (
            "tables that answer WideSearch's tasks, or any in their form, by its own rules "
            "and by stricter ones"
        ),
    ),
    "filtering": (
        "filtering",
        "what an executor learns with the filter, without it, and from gold; precision and recall",
    ),
    "loop": (
        "loop",
        "from logged traffic to a better executor in service, and a degraded one out of it",
    ),
    "overhead": (
        "overhead",
        "what the gateway itself costs in CPU, time and memory, beside bare means and LiteLLM",
    ),
    "early-dispatch": (
        "early_dispatch",
        "what it brings to begin with sub-queries while the delegator still writes its block",
    ),
    "reliability": (
        "reliability.command",
        (
            "whether anything is lost, late or booked wrongly while upstreams fail and the "
            "gateway is killed"
        ),
    ),
}


@private_files()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="rolegate bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, (_, summary) in BENCHMARKS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(given[:1])
    module = importlib.import_module(f"benchmarks.{BENCHMARKS[chosen.benchmark][0]}")
    try:
        return harness.run(chosen.benchmark, module, [*rest, *given[1:]])
    except (RolegateError, GatewayError) as error:
        complain(f"rolegate bench: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
