"""`rolegate ask` and `rolegate chat`: put questions over gRPC and show how their answers came
about.
"""

import argparse
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
from threading import Thread
from typing import TypeVar, cast, get_args

import msgspec
from rich.console import Console
from rich.markup import escape
from rolegate.client import Client, GatewayError
from rolegate.client.requests import ANSWER_S, RequestOptions, SearchOptions, TopologyName
from rolegate.v1.answer_service_pb2 import AnswerResponse

from router.access import new_key
from router.errors import StoreInUse
from router.trace.identity import SCOPES
from serving.cli.options import (
    add_certificates,
    add_config,
    chosen_config,
    connection,
    dollars,
    host_port,
    new_parser,
    timeout,
    tokens,
)
from serving.cli.tables import AnswerView, summed, usage_table
from serving.logs import errors_only
from serving.terminal import complain

_ASK = """`rolegate ask`: ask a question over gRPC and show how the answer came about.

Without --address a gateway is started for the question and stopped after it.
"""
_CHAT = """`rolegate chat`: keep asking in a terminal, or line by line from a pipe.

Each question stands alone: none is read together with the ones before it. Without --address a
gateway is started for the chat. Ctrl-C cancels the running question; Ctrl-D or `/quit` ends.
Commands (`:` works in place of `/`):

  /good                 the last answer was right
  /bad [RIGHT ANSWER]   the last answer was wrong
  /usage                the tokens of this chat's answers
  /help                 these commands
  /quit                 end
"""


_STARTING_S = 0.3
Terms = TypeVar("Terms", bound=SearchOptions)


def add_gateway(parser: argparse.ArgumentParser, timeout_s: float = ANSWER_S) -> None:
    """`--address HOST:PORT` with certificates, or the config of a gateway to be started; and
    `--timeout SECONDS`.
    """
    add_config(parser).add_argument(
        "--address", type=host_port, metavar="HOST:PORT", help="ask the gateway that runs there"
    )
    what = "the deadline (default: %(default)g)"
    parser.add_argument("--timeout", type=timeout, default=timeout_s, metavar="SECONDS", help=what)
    add_certificates(parser)


def add_terms(parser: argparse.ArgumentParser, noun: str, topologies: object, about: str) -> None:
    """Options of a question or a table, which are those of the client's calls. `topologies`:
    the names, as a type.
    """
    parser.add_argument(
        "--request-id",
        default="",
        metavar="NAME",
        help=f"asked again under it, the {noun} is the same",
    )
    parser.add_argument(
        "--max-total-tokens", type=tokens, metavar="N", help="what may be spent on it"
    )
    parser.add_argument("--max-cost-usd", type=dollars, metavar="USD", help="the same in dollars")
    parser.add_argument(
        "--no-cache", action="store_true", help="use nothing that other runs have found"
    )
    parser.add_argument("--topology", choices=get_args(topologies), help=about)
    parser.add_argument(
        "--json", action="store_true", help="print JSON; of a stream, one line an event"
    )


def terms(given: argparse.Namespace, of: type[Terms]) -> Terms:
    """The options that the command has of those of a call."""
    return cast(
        Terms, {name: value for name, value in vars(given).items() if name in of.__annotations__}
    )


@contextmanager
def reached(given: argparse.Namespace, progress: Console) -> Iterator[Client]:
    """A client of the gateway that the options of `add_gateway` name; one that is started stops
    with the context. Where another gateway has the config's store, that one is asked. Raises
    `BadConfig` or `BadIndex`.
    """
    if given.address is not None:
        with Client(connection(given)) as client:
            yield client
        return
    from serving.composition import running_gateway

    config = chosen_config(given)
    sent, key = new_key(None, SCOPES)
    # Loopback only
    config = msgspec.structs.replace(
        config, server=msgspec.structs.replace(config.server, tls=None)
    )
    with ExitStack() as stack:
        with progress.status("starting the gateway") as status:

            def log(text: str) -> None:
                progress.print(text, style="dim", markup=False, highlight=False)
                status.update(escape(text))

            until = time.monotonic() + given.timeout
            while True:
                try:
                    gateway = running_gateway(config, "127.0.0.1:0", log, key=key)
                    address = stack.enter_context(in_background(gateway))
                    break
                except StoreInUse as error:
                    given.address = error.address
                    if not given.address and time.monotonic() > until:
                        raise
                if given.address:
                    log(f"asking the gateway at {given.address}, which has this store")
                    break
                status.update("a gateway that has this store starts just now; waiting for it")
                time.sleep(_STARTING_S)
        client = Client(connection(given)) if given.address else Client(address, api_key=sent)
        yield stack.enter_context(client)


def ask(arguments: Sequence[str]) -> int:
    """Ask one question."""
    parser = new_parser("ask", _ASK)
    parser.add_argument("question", metavar="QUESTION", help="in plain words")
    add_gateway(parser)
    what = (
        "who searches and who answers; the demo's models know only factorized, the others "
        "compare (docs/study.md)"
    )
    add_terms(parser, "answer", TopologyName, what)
    parser.add_argument(
        "--stream", action="store_true", help="show rounds, sub-queries and searches as they happen"
    )
    given = parser.parse_args(arguments)
    if given.address is None and not given.question.strip():  # before anything is started
        parser.error("question is empty; put a question in plain words into it.")
    errors_only()
    progress = Console(stderr=True, quiet=given.json)
    view = AnswerView(Console(), progress, stream=given.stream, as_json=given.json)
    options = terms(given, RequestOptions)
    with reached(given, progress) as client:
        try:
            with progress.status("asking"):
                answer = view.follow(client.stream(given.question, given.timeout, **options))
            view.show(answer)
        except GatewayError as error:
            complain(f"rolegate: {error}")
            return 1
    return 0


Opened = TypeVar("Opened")


@contextmanager
def in_background(service: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Keep `service` open while this is open, on a loop that goes on in another thread; what it
    opens. Raises what it raises. An interrupt while it opens or closes is asyncio's, and ends that
    first.
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


def chat(arguments: Sequence[str]) -> int:
    """Ask until there are no more questions."""
    parser = new_parser("chat", _CHAT)
    add_gateway(parser)
    parser.add_argument(
        "--stream", action="store_true", help="show rounds, sub-queries and searches as they happen"
    )
    given = parser.parse_args(arguments)
    errors_only()
    progress = Console(stderr=True)
    with reached(given, progress) as client:
        chat = Chat(client, Console(), progress, timeout_s=given.timeout, stream=given.stream)
        progress.print(_HINT, style="dim", markup=False, highlight=False)
        for line in _lines():
            chat.take(line)
    return 0


class Chat:
    """Questions to one gateway, and what is said about its answers."""

    def __init__(
        self, client: Client, out: Console, progress: Console, *, timeout_s: float, stream: bool
    ) -> None:
        self._client = client
        self._out = out
        self._progress = progress
        self._timeout_s = timeout_s
        self._stream = stream
        self._answers: list[AnswerResponse] = []
        self._last: AnswerResponse | None = None
        """None where the last question got no answer."""

    def take(self, line: str) -> None:
        """Ask, or do what a command says. Errors are shown, and Ctrl-C ends this line alone."""
        try:
            match re.sub("^/", ":", line).split(maxsplit=1):
                case []:
                    pass
                case [":good"]:
                    self._rate(accepted=True)
                case [":bad", *right]:
                    self._rate(accepted=False, right_answer="".join(right))
                case [":help"]:
                    self._say(_HINT)
                case [":usage"]:
                    self._out.print(
                        usage_table(summed(row for answer in self._answers for row in answer.usage))
                    )
                case [word, *_] if word.startswith(":"):
                    self._say(f"{word} is no command here.\n{_HINT}")
                case _:
                    self._ask(line)
        except GatewayError as error:
            self._say(str(error), "red")
        except KeyboardInterrupt:
            self._say("cancelled", "yellow")

    def _ask(self, question: str) -> None:
        self._last = None
        view = AnswerView(self._out, self._progress, stream=self._stream, as_json=False)
        with self._progress.status("asking"):
            answer = view.follow(self._client.stream(question, self._timeout_s))
        view.show(answer)
        self._last = answer
        self._answers.append(answer)

    def _rate(self, *, accepted: bool, right_answer: str = "") -> None:
        if self._last is None:
            self._say("the last question has no answer to say this about", "yellow")
            return
        self._client.feedback(self._last.run_id, accepted=accepted, right_answer=right_answer)
        self._say(f"noted about {self._last.run_id}")

    def _say(self, text: str, style: str = "dim") -> None:
        self._progress.print(text, style=style, markup=False, highlight=False)


def _lines() -> Iterator[str]:
    """Lines that are typed, with line editing, or piped, until its end or `exit`."""
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
