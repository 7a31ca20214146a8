"""`rolegate versions`: which versions of the executor there are, and which of them work for whom.

A new version is published (`rolegate sft publish`), registered, tried as shadow beside the active
one, then as canary for a share of the runs, and promoted. From shadow on, a gateway does that by
itself, or rolls the version back, as soon as the figures allow it ([versions.gate] in its config).
"""

import argparse
from collections.abc import Callable, Sequence

from rolegate.client import Client
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion

from serving.cli.options import (
    add_command,
    add_connection,
    json_of,
    new_parser,
    show_each,
    with_client,
)
from serving.cli.tables import decisions_table, evidence_line, state_of, versions_table

_ACTIONS: dict[str, tuple[str, str]] = {
    "register": (
        "take in a published version",
        "Checks the version, loads it into the running engine, and records it.",
    ),
    "shadow": (
        "let it work beside the active one",
        "Tries a version on every run, after the client has its answer.",
    ),
    "canary": (
        "let it work for a share of the runs",
        "Lets a version answer some runs; the active one is compared.",
    ),
    "off": ("stop trying it", "Asks nothing any more of a version that is shadow or canary."),
    "promote": (
        "make it the active one",
        "Lets a version work for all runs; the active one is kept, to go back to.",
    ),
    "rollback": (
        "take it out of service",
        "Takes a version out; where it is active, the one before it takes over.",
    ),
}
_CALLS: dict[str, Callable[[Client, argparse.Namespace], ExecutorVersion]] = {
    "register": lambda client, given: client.register_version(given.version),
    "shadow": lambda client, given: client.set_version_traffic(given.version, "shadow"),
    "canary": lambda client, given: client.set_version_traffic(
        given.version, "canary", given.share
    ),
    "off": lambda client, given: client.set_version_traffic(given.version, "registered"),
    "promote": lambda client, given: client.promote_version(given.version),
    "rollback": lambda client, given: client.roll_back_version(given.version),
}


def versions(arguments: Sequence[str]) -> int:
    """One of the subcommands."""
    given = _parser().parse_args(arguments)
    return with_client(given, lambda client: int(given.work(client, given) or 0))


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("versions", __doc__)
    commands = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    add_command(
        commands,
        "list",
        "all of them",
        "Lists versions, newest first, with figures of trials.",
        _list,
    )
    for name, (summary, description) in _ACTIONS.items():
        command = add_command(commands, name, summary, description, _act)
        command.add_argument("version", metavar="VERSION", help="such as executor-000001")
        if name == "canary":
            command.add_argument(
                "--share",
                type=float,
                default=0.2,
                help="of the runs, 0 to 1 (default: %(default)s)",
            )
    what = "Lists decisions, by whom and why."
    decisions = add_command(commands, "decisions", "what was decided, and why", what, _decisions)
    decisions.add_argument(
        "version", nargs="?", default="", metavar="VERSION", help="one version's only"
    )
    decisions.add_argument(
        "--after", type=int, default=0, metavar="N", help="only those after number N"
    )
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON")
        add_connection(command)
    return parser


def _list(client: Client, given: argparse.Namespace) -> None:
    versions = client.versions()
    show_each(versions, lambda: versions_table(versions), as_json=given.json)
    for version in versions:
        if version.figures.evidence and not given.json:
            print(evidence_line(version))


def _act(client: Client, given: argparse.Namespace) -> None:
    version = _CALLS[given.action](client, given)
    print(json_of(version) if given.json else f"{version.version} is {state_of(version)} now")


def _decisions(client: Client, given: argparse.Namespace) -> None:
    decisions = client.version_decisions(given.version, given.after)
    show_each(decisions, lambda: decisions_table(decisions), as_json=given.json)
