"""`rolegate`: one command for asking, serving, indexing, training and measuring."""

import argparse
import atexit
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version

from rolegate.client import GatewayError

from router.errors import RolegateError
from serving.dependencies import missing_extra
from serving.files import private_files
from serving.logs import plain_tracebacks
from serving.terminal import complain, visible_output

_COMMANDS = {
    "init": "write a config from answers to a few questions",
    "check": "check whether a config works, and what a question costs",
    "index": "build an index of documents",
    "documents": "upload documents to a running gateway, and list and delete them",
    "serve": "run the gateway until stopped",
    "ask": "ask a question; without --address, start a gateway for it",
    "table": "fill a table; without --address, start a gateway for it",
    "chat": "ask one question after another",
    "search": "search a running gateway's index",
    "mcp": "let agents ask a running gateway (Model Context Protocol)",
    "runs": "list, show and cancel runs, and export their traces",
    "usage": "show tokens and cost, and compare the tokens with the engines' counters",
    "keys": "create, list and revoke API keys",
    "tenants": "limit what each tenant may spend",
    "versions": "try, promote and roll back versions of the executor (the model that searches)",
    "store": "check, upgrade, copy and restore the store",
    "retrieve": "serve an index to other processes",
}
_MODULES = {"chat": "ask", "retrieve": "index", "keys": "accounts", "tenants": "accounts"}
"""Modules of commands, if the module and the command have different names. Each command is a
function in its module, under the command's name. A module is imported only when one of its commands
is called.
"""
_GROUP = "rolegate.commands"
"""Entry-point group in which other packages register commands. Each entry point is a function that
takes the command-line arguments and returns the exit status. It is loaded only when its command is
called.
"""
_ABOVE = {
    "sft": "train the executor on logged runs",
    "bench": "measure answers and what they cost",
}
"""Summaries of commands that the packages `executor_sft` and `benchmarks` register in `_GROUP`."""


def _silence_libraries() -> None:
    """Discard all further output to standard error, because C++ libraries report leaks there when
    Python exits.
    """
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@private_files()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name (default: `sys.argv[1:]`); return its exit status.
    Expected errors are printed as one line, without a traceback.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        atexit.register(_silence_libraries)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else gRPC prints errors, too
    others = {point.name: point for point in entry_points(group=_GROUP)}
    parser = argparse.ArgumentParser(
        prog="rolegate",
        description=__doc__,
        epilog="`rolegate COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summaries = _COMMANDS | {name: _ABOVE.get(name, "") for name in others}
    for name, summary in summaries.items():
        commands.add_parser(name, help=summary, add_help=False)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed the stream
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if [*arguments[:1]] == ["--version"]:  # only an installed package has a version
        print(f"rolegate {version('rolegate')}")
        return 0
    name = parser.parse_args(arguments[:1]).command
    plain_tracebacks()
    try:
        if name in others:
            command = others[name].load()
        else:
            command = pkgutil.resolve_name(f"serving.cli.{_MODULES.get(name, name)}:{name}")
        with visible_output():
            return int(command(arguments[1:]))
    except BrokenPipeError:
        # The reader has closed the pipe; discard what Python flushes when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (GatewayError, RolegateError, OSError, UnicodeError) as error:
        complain(f"rolegate: {error}")
        return 1
    except ImportError as error:
        complain(f"rolegate {name}: {error}; to install it: {missing_extra(error.name, name)}")
        return 1
    except (KeyboardInterrupt, EOFError):
        return 130
