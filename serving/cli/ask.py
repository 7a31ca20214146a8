"""`rolegate ask` and `rolegate chat`: ask questions and show how their answers came about."""

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    suppress,
)
from pathlib import Path
from threading import Thread
from typing import Annotated, TypeVar, cast

import msgspec
from rich.console import Console
from rich.markup import escape
from rolegate.client import Client, GatewayError
from rolegate.client.requests import ANSWER_S, RequestOptions, SearchOptions, TopologyName
from rolegate.v1.answer_service_pb2 import AnswerResponse
from rolegate.v1.usage_pb2 import RoleUsage

from router.access import new_key
from router.errors import BadRequest, StoreInUse
from router.trace.identity import SCOPES
from serving.cli.command import POSITIONAL, exclusive, parse
from serving.cli.grid import print_line
from serving.cli.options import (
    CertificateOptions,
    Dollars,
    HostPort,
    Name,
    Seconds,
    Tokens,
    connection,
)
from serving.cli.tables import AnswerView, usage_table
from serving.config.file import load_config
from serving.logs import errors_only
from serving.terminal import complain

Terms = TypeVar("Terms", bound=SearchOptions)


class GatewayOptions(CertificateOptions, frozen=True):
    """Options of commands that ask a running gateway, or one that they start."""

    config: Path | None = None
    address: Annotated[HostPort, exclusive("config")] | None = None
    """Ask this running gateway, instead of starting one; the key comes from ROLEGATE_API_KEY."""
    timeout: Seconds = ANSWER_S
    """End the run after this time."""


class TermsOptions(GatewayOptions, frozen=True):
    """Options of a question or a table, which are sent with the request."""

    request_id: Name = ""
    """Name the request; the same name gets the same result again."""
    max_total_tokens: Tokens | None = None
    """Spend at most this many tokens."""
    max_cost_usd: Dollars | None = None
    """Spend at most this amount."""
    no_cache: bool = False
    """Use nothing that other runs have found."""
    json: bool = False
    """Print JSON; of a stream, one line per event."""


def terms(options: TermsOptions, kind: type[Terms]) -> Terms:
    """Return the request options among a command's options."""
    fields = {name: getattr(options, name, None) for name in kind.__annotations__}
    return cast(Terms, {name: value for name, value in fields.items() if value is not None})


@contextmanager
def reached(options: GatewayOptions, progress: Console) -> Iterator[Client]:
    """Yield a client of the gateway that the options name. A gateway that is started for it stops
    with the context; if another gateway uses the config's store, that one is asked. Raises
    `BadConfig` or `BadIndex`.
    """
    if options.address is not None:
        with Client(connection(options, options.address)) as running:
            yield running
        return
    from serving.composition import running_gateway

    assert options.config is not None
    config = load_config(options.config)
    sent, key = new_key(None, SCOPES)
    # Loopback only
    server = msgspec.structs.replace(config.server, tls=None)
    config = msgspec.structs.replace(config, server=server)
    with ExitStack() as stack:
        with progress.status("starting the gateway") as status:

            def log(text: str) -> None:
                print_line(progress, text, style="dim")
                status.update(escape(text))

            deadline = time.monotonic() + options.timeout
            client: Client | None = None
            while client is None:
                try:
                    gateway = running_gateway(config, "127.0.0.1:0", log, key=key)
                    address = stack.enter_context(in_background(gateway))
                    client = Client(address, api_key=sent)
                except StoreInUse as error:
                    if error.address:
                        log(f"asking the gateway at {error.address}, which uses this store")
                        client = Client(connection(options, error.address))
                    elif time.monotonic() > deadline:
                        raise
                    else:
                        status.update("waiting for a gateway with this store, which is starting")
                        time.sleep(_STARTING_S)
        yield stack.enter_context(client)


_STARTING_S = 0.3
"""Pause between looks for the address of a gateway that is starting."""


class AskOptions(TermsOptions, frozen=True, kw_only=True):
    """Ask a question over gRPC and show how the answer came about.

    Without --address a gateway is started for the question and stopped after it.
    """

    question: Annotated[str, POSITIONAL]
    """The question, in plain words."""
    topology: TopologyName | None = None
    """Choose host for managers between the delegator and executors (docs/operating.md)."""
    stream: bool = False
    """Show rounds, sub-queries and searches as they happen."""


def ask(arguments: Sequence[str]) -> int:
    """Ask one question."""
    options = parse(AskOptions, "ask", arguments)
    if options.address is None and not options.question.strip():  # before anything is started
        raise BadRequest("question: is empty; ask something in plain words.")
    errors_only()
    progress = Console(stderr=True, quiet=options.json)
    view = AnswerView(Console(), progress, stream=options.stream, as_json=options.json)
    request_options = terms(options, RequestOptions)
    with reached(options, progress) as client:
        try:
            stream = client.stream(options.question, options.timeout, **request_options)
            view.show(view.follow(stream))
        except GatewayError as error:
            complain(f"rolegate: {error}")
            return 1
    return 0


Opened = TypeVar("Opened")


@contextmanager
def in_background(service: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Keep `service` open in another thread's event loop; yield what it opens, raise what it
    raises. asyncio handles an interrupt while the service opens or closes, and ends that first.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        stack = AsyncExitStack()
        try:
            opened = runner.run(stack.enter_async_context(service))
            thread = Thread(target=loop.run_forever)
            try:
                thread.start()
                yield opened
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
        finally:
            runner.run(stack.aclose())


_HINT = "Each question stands alone. Commands: /good, /bad [RIGHT ANSWER], /usage, /help, /quit."
_ENDS = ("exit", "quit", "/exit", "/quit", ":exit", ":quit", ":q", "/q")


class ChatOptions(GatewayOptions, frozen=True):
    """Keep asking, in a terminal or line by line from a pipe.

    Each question stands alone: the gateway does not see the questions before it. Without --address
    a gateway is started for the chat. Ctrl-C cancels the running question; Ctrl-D or `/quit` ends.
    Commands (`:` works in place of `/`):

      /good                 the last answer was right
      /bad [RIGHT ANSWER]   the last answer was wrong
      /usage                the tokens of this chat's answers
      /help                 these commands
      /quit                 end
    """

    stream: bool = False
    """Show rounds, sub-queries and searches as they happen."""


def chat(arguments: Sequence[str]) -> int:
    """Ask until the input ends. Show errors; Ctrl-C ends the running question only."""
    options = parse(ChatOptions, "chat", arguments)
    errors_only()
    progress = Console(stderr=True)
    view = AnswerView(Console(), progress, stream=options.stream, as_json=False)
    usage: list[RoleUsage] = []
    last: AnswerResponse | None = None

    def say(text: str, style: str = "dim") -> None:
        print_line(progress, text, style=style)

    with reached(options, progress) as client:
        say(_HINT)
        for line in _lines():
            try:
                match re.sub("^/", ":", line).split(maxsplit=1):
                    case []:
                        pass
                    case [":good" | ":bad", *_] if last is None:
                        say("there is no last answer to rate", "yellow")
                    case [(":good" | ":bad") as verdict, *right] if last is not None:
                        client.feedback(
                            last.run_id,
                            accepted=verdict == ":good",
                            right_answer="".join(right),
                        )
                        say(f"stored with {last.run_id}")
                    case [":help"]:
                        say(_HINT)
                    case [":usage"]:
                        view.out.print(usage_table(usage))
                    case [word, *_] if word.startswith(":"):
                        say(f"{word} is not a command.\n{_HINT}")
                    case _:
                        last = None
                        last = view.follow(client.stream(line, options.timeout))
                        view.show(last)
                        usage.extend(last.usage)
            except GatewayError as error:
                say(str(error), "red")
            except KeyboardInterrupt:
                say("cancelled", "yellow")
    return 0


def _lines() -> Iterator[str]:
    """Yield typed or piped lines until the input ends or says `exit`; typed ones can be edited."""
    prompt = ""
    if sys.stdin.isatty():
        prompt = "rolegate> "
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401 - `input` uses it from now on
    while True:
        try:
            line = input(prompt).strip()
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            return
        if line in _ENDS:
            return
        yield line
