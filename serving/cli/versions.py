"""`rolegate versions`: list, try, promote and roll back versions of the executor."""

from collections.abc import Sequence
from typing import Annotated

from rolegate.client import Client
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion

from serving.cli.command import POSITIONAL, run_subcommand
from serving.cli.options import JSONConnectionOptions, json_of, show_each, with_client
from serving.cli.tables import decisions_table, state_of, versions_table

_ABOUT = """List, try, promote and roll back versions of the executor.

The executor is the model that searches. A new version of the executor is published (`rolegate sft
publish`) and registered. Then it is tried: first as a shadow, which repeats finished runs without
changing their answers, and then as a canary, which is the executor in a share of the runs. Finally,
it is promoted, and becomes the active version. After `versions shadow`, the gateway itself takes
the next steps, or rolls the version back, as soon as the figures of the trial allow a decision
([versions.gate] in the config).
"""


class DecisionsOptions(JSONConnectionOptions):
    """Options of `versions decisions`."""

    version: Annotated[str, POSITIONAL] = ""
    """Show only decisions on this version."""
    after: int = 0
    """Show only decisions with a number (column #) higher than this (default: all decisions)."""


class VersionOptions(JSONConnectionOptions, kw_only=True):
    """Options of commands on one version."""

    version: Annotated[str, POSITIONAL]
    """Name of the version, such as executor-000001."""


class CanaryOptions(VersionOptions):
    """Options of `versions canary`."""

    share: float = 0.2
    """Share of the runs in which the version is the executor instead of the active version: a
    number above 0, at most 1.
    """


def versions(arguments: Sequence[str]) -> int:
    """Run `rolegate versions`; return the exit status."""
    return run_subcommand(
        "versions",
        _ABOUT,
        {
            "list": _list,
            "register": _register,
            "shadow": _shadow,
            "canary": _canary,
            "off": _off,
            "promote": _promote,
            "rollback": _roll_back,
            "decisions": _decisions,
        },
        arguments,
        with_client,
    )


def _register(client: Client, options: VersionOptions) -> None:
    """Register a published version: check its files, and load it into the running engine."""
    _show(client.register_version(options.version), options)


def _shadow(client: Client, options: VersionOptions) -> None:
    """Make a version a shadow: let it repeat each run after the client has received the answer."""
    _show(client.set_version_traffic(options.version, "shadow"), options)


def _canary(client: Client, options: CanaryOptions) -> None:
    """Make a version a canary: the executor in a share of the runs, for a comparison."""
    _show(client.set_version_traffic(options.version, "canary", options.share), options)


def _off(client: Client, options: VersionOptions) -> None:
    """Stop the trial of a version that is a shadow or a canary."""
    _show(client.set_version_traffic(options.version, "registered"), options)


def _promote(client: Client, options: VersionOptions) -> None:
    """Make a version active; the previously active version is kept for a rollback."""
    _show(client.promote_version(options.version), options)


def _roll_back(client: Client, options: VersionOptions) -> None:
    """Take a version out of service; if it was active, the previously active version takes over."""
    _show(client.roll_back_version(options.version), options)


def _show(version: ExecutorVersion, options: VersionOptions) -> None:
    print(json_of(version) if options.json else f"{version.version} is {state_of(version)} now")


def _list(client: Client, options: JSONConnectionOptions) -> None:
    """List versions, newest first, with the figures of their trials."""
    versions = client.versions()
    show_each(versions, lambda: versions_table(versions), as_json=options.json)


def _decisions(client: Client, options: DecisionsOptions) -> None:
    """List decisions on versions: who made them, and why."""
    decisions = client.version_decisions(options.version, options.after)
    show_each(decisions, lambda: decisions_table(decisions), as_json=options.json)
