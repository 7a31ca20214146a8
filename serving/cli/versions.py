"""`rolegate versions`: list, try, promote and roll back versions of the executor."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from rolegate.client import Client
from rolegate.client.requests import TriedState
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion

from serving.cli.command import POSITIONAL, Command, run_subcommand
from serving.cli.options import JSONConnectionOptions, json_of, show_each, with_client
from serving.cli.tables import decisions_table, state_of, versions_table

_ABOUT = """List, try, promote and roll back versions of the executor.

A new version is published (`rolegate sft publish`) and registered. Then it is tried as a shadow,
which works on the sub-queries of finished runs too, and as a canary, which works for a share of the
runs. At last it is promoted to the active version. Once a version is a shadow, the gateway itself
moves it forward or rolls it back as soon as the figures of its trials allow a decision
([versions.gate] in the config).
"""


class ListOptions(JSONConnectionOptions):
    """List versions, newest first, with the figures of their trials."""


class DecisionsOptions(JSONConnectionOptions):
    """List decisions on versions: who made them, and why."""

    version: Annotated[str, POSITIONAL] = ""
    """Show only decisions on this version."""
    after: int = 0
    """Show only decisions after this number."""


class VersionOptions(JSONConnectionOptions, kw_only=True):
    """Options of commands on one version."""

    version: Annotated[str, POSITIONAL]
    """Name of the version, such as executor-000001."""


class RegisterOptions(VersionOptions):
    """Register a published version: check its files, load it into the running engine, store it."""


class ShadowOptions(VersionOptions):
    """Make a version a shadow: try it on every run, after the client has the answer."""


class CanaryOptions(VersionOptions):
    """Make a version a canary: let it work for some runs, and compare it with the active one."""

    share: float = 0.2
    """Share of the runs that the version works for, more than 0 and at most 1."""


class OffOptions(VersionOptions):
    """Stop the trial of a version that is a shadow or a canary."""


class PromoteOptions(VersionOptions):
    """Make a version the active one; the previously active version is kept for a rollback."""


class RollbackOptions(VersionOptions):
    """Take a version out of service; if it was active, the previously active one takes over."""


def versions(arguments: Sequence[str]) -> int:
    """Run `rolegate versions`; return the exit status."""
    commands = {
        "list": Command(ListOptions, _list),
        "register": Command(RegisterOptions, _changed(Client.register_version)),
        "shadow": Command(ShadowOptions, _traffic("shadow")),
        "canary": Command(CanaryOptions, _traffic("canary")),
        "off": Command(OffOptions, _traffic("registered")),
        "promote": Command(PromoteOptions, _changed(Client.promote_version)),
        "rollback": Command(RollbackOptions, _changed(Client.roll_back_version)),
        "decisions": Command(DecisionsOptions, _decisions),
    }
    return run_subcommand(
        "versions",
        _ABOUT,
        commands,
        arguments,
        with_client,
    )


def _changed(change: Callable[[Client, str], ExecutorVersion]) -> Callable[..., None]:
    """Return the work of a command that calls `change` for a version and shows the new state."""
    return lambda client, options: _show(change(client, options.version), options)


def _traffic(traffic: TriedState) -> Callable[..., None]:
    """Return the work of a command that puts a version into another state: shadow, canary, or
    registered without traffic.
    """

    def change(client: Client, options: Any) -> None:
        share = getattr(options, "share", 0.0)
        _show(client.set_version_traffic(options.version, traffic, share), options)

    return change


def _show(version: ExecutorVersion, options: VersionOptions) -> None:
    print(json_of(version) if options.json else f"{version.version} is {state_of(version)} now")


def _list(client: Client, options: ListOptions) -> None:
    versions = client.versions()
    show_each(versions, lambda: versions_table(versions), as_json=options.json)


def _decisions(client: Client, options: DecisionsOptions) -> None:
    decisions = client.version_decisions(options.version, options.after)
    show_each(decisions, lambda: decisions_table(decisions), as_json=options.json)
