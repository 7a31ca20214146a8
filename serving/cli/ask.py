"""`rolegate ask` and `rolegate chat`: ask questions, and show the answers with the steps that led
to them.
"""

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
from typing import Annotated, TypeVar, cast

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rolegate.client import Client, GatewayError
from rolegate.client.requests import (
    ANSWER_S,
    ChatMessage,
    IndexOptions,
    RequestOptions,
    TopologyName,
    extended,
)
from rolegate.v1.answer_service_pb2 import AnswerResponse
from rolegate.v1.document_filter_pb2 import DocumentFilter
from rolegate.v1.usage_pb2 import RoleUsage

from router.access import new_key
from router.errors import BadRequest, StoreInUse
from router.protocol.style import Length
from router.trace.identity import SCOPES
from serving.cli.command import POSITIONAL, parse
from serving.cli.grid import print_line
from serving.cli.options import (
    Dollars,
    Name,
    Names,
    Properties,
    Seconds,
    StoreOptions,
    Tokens,
    connection,
    document_filter,
)
from serving.cli.tables import AnswerView, usage_table
from serving.config.file import load_config
from serving.logs import errors_only

Terms = TypeVar("Terms", bound=IndexOptions)


class GatewayOptions(StoreOptions):
    """Options of commands that call a running gateway, or start one if no address is given."""

    timeout: Seconds | None = None
    """End the run after this many seconds (default: the gateway's limit)."""
    index: Names = ()
    """Search the indexes with these names: default (of the config's table [retrieval]), uploads (of
    uploaded documents), or NAME of a table [indexes.NAME]. Without it, search all that the API key
    may search.
    """
    properties: Properties = msgspec.field(default=(), name="filter")
    """Search only documents with all of these properties: title=TEXT or author=TEXT (contains
    TEXT), path=PREFIX (begins with PREFIX), tag=TAG, date=2026-11, "date>=2026-11-21",
    "date<=2026".
    """

    @property
    def filter(self) -> DocumentFilter:
        """The filter that `properties` describe. Raises `BadConfig` if one of them is invalid."""
        return document_filter(self.properties)


class TermsOptions(GatewayOptions):
    """Options of commands that ask for an answer or a table."""

    request_id: Name = ""
    """Idempotency key, a text of your choice: if a request of the last 24 hours had the same key,
    its stored result is returned, and nothing is spent again.
    """
    max_total_tokens: Tokens | None = None
    """Spend at most this many tokens, prompt and completion of all models together. When they are
    used up, the result is made from what was found so far (default: no limit).
    """
    max_cost_usd: Dollars | None = None
    """Spend at most this many US dollars, on all models together. When they are used up, the result
    is made from what was found so far. The gateway must know the prices of all models (default: no
    limit).
    """
    no_cache: bool = False
    """Search for every sub-query again, instead of reusing the recent report of another run on the
    same sub-query.
    """
    json: bool = False
    """Print the result as JSON. With `ask --stream`, print one line of JSON for each event instead.
    """


def terms(options: GatewayOptions, kind: type[Terms]) -> Terms:
    """Return the options that the client sends with a request, as keyword arguments. Options that
    are not given on the command line are left out.

    `kind`: a `TypedDict` of the client, with the names of the options to return.
    """
    given = {
        name: value
        for name in kind.__annotations__
        if (value := getattr(options, name, None)) is not None
    }
    return cast(Terms, given)


@contextmanager
def reached(options: GatewayOptions, progress: Console) -> Iterator[Client]:
    """Yield a client of the gateway at `options.address`. Without an address, start a gateway that
    stops when the context ends. If another gateway already uses the config's store, yield a client
    of that gateway instead.

    `progress`: console that shows the steps of the start. Raises `BadConfig` or `BadIndex` if the
    gateway cannot start. Raises `StoreInUse` if another gateway uses the store, but does not
    announce its address before the timeout.
    """
    if options.address is not None:
        with Client(connection(options, options.address)) as running:
            yield running
        return
    from serving.composition import running_gateway

    assert options.config is not None
    config = load_config(options.config)
    sent, key = new_key(None, SCOPES)
    # No TLS: the gateway listens on the loopback interface only
    config = replace(config, server=replace(config.server, tls=None))
    with ExitStack() as stack:
        with progress.status("starting the gateway") as status:

            def log(text: str) -> None:
                print_line(progress, text, style="dim")
                status.update(escape(text))

            deadline = time.monotonic() + (options.timeout or ANSWER_S)
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
                        status.update("waiting for another gateway that starts with this store")
                        time.sleep(_STARTING_S)
        yield stack.enter_context(client)


_STARTING_S = 0.3
"""Seconds between attempts to start a gateway, while another gateway starts with the same store."""


class AskOptions(TermsOptions, kw_only=True):
    """Ask a question; show the answer and the steps that led to it.

    Without --address, a gateway is started for the question and stopped afterwards.
    """

    question: Annotated[str, POSITIONAL]
    """The question, in plain words."""
    topology: TopologyName | None = None
    """How the models share the work (default: factorized). factorized: a delegator splits the
    question into sub-queries, and executors search for them. host: the managers of the config
    ([managers.NAME]) split each sub-query of the delegator again, and lead the executors.
    """
    language: Name = ""
    """Language of the answer, such as German (default: answer.language of the gateway's config, or
    if that is not set, the language of the question).
    """
    length: Length | None = None
    """Length of the answer: short (only the name, date or number asked for), sentence, or paragraph
    (two to six sentences) (default: answer.length of the gateway's config).
    """
    stream: bool = False
    """Show rounds, sub-queries and searches as they happen."""


def ask(arguments: Sequence[str]) -> int:
    """Run `rolegate ask`; return the exit status."""
    options = parse(AskOptions, "ask", arguments)
    if options.address is None and not options.question.strip():  # before a gateway starts
        raise BadRequest("question: is empty; ask something in plain words.")
    errors_only()
    progress = Console(stderr=True, quiet=options.json)
    view = AnswerView(Console(), progress, stream=options.stream, as_json=options.json)
    with reached(options, progress) as client:
        stream = client.stream(options.question, options.timeout, **terms(options, RequestOptions))
        view.show(view.follow(stream))
    return 0


Opened = TypeVar("Opened")


@contextmanager
def in_background(service: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Open `service`, yield its value, and close it when the context ends. Until then, the event
    loop of `service` runs in another thread. Exceptions of opening and closing are raised in the
    caller's thread.

    If the user presses Ctrl-C while `service` opens or closes, asyncio cancels the opening or
    closing, waits until it has ended, and raises `KeyboardInterrupt`.
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


_HINT = (
    "A question may refer to earlier questions.\nCommands: /new, /index [NAME ...], /right, "
    "/wrong [RIGHT ANSWER], /usage, /help, /quit."
)
_ENDS = ("exit", "quit", "/exit", "/quit", ":exit", ":quit", ":q", "/q")


class ChatOptions(GatewayOptions):
    """Ask one question after another, typed in a terminal or read from a pipe, one per line.

    A question may refer to the questions and answers before it. Without --address, a gateway is
    started for the chat. Ctrl-C cancels the running question; Ctrl-D or `/quit` ends the chat.
    Commands (`:` works in place of `/`):

      /new                  begin a new conversation
      /index [NAME ...]     search only these indexes; without NAME, search all
      /right                say that the last answer was right
      /wrong [RIGHT ANSWER] say that the last answer was wrong
      /usage                show the tokens and the cost of this chat's answers, by role
      /help                 list the commands
      /quit                 end the chat
    """

    language: Name = ""
    """Language of the answers, such as German (default: answer.language of the gateway's config, or
    if that is not set, the language of the question).
    """
    length: Length | None = None
    """Length of the answers: short (only the name, date or number asked for), sentence, or
    paragraph (two to six sentences) (default: answer.length of the gateway's config).
    """
    stream: bool = False
    """Show rounds, sub-queries and searches as they happen."""


def chat(arguments: Sequence[str]) -> int:
    """Run `rolegate chat` until the input ends or the user enters `/quit`; return the exit status.

    The chat continues after an error of the gateway, and after Ctrl-C, which cancels the running
    question.
    """
    options = parse(ChatOptions, "chat", arguments)
    request_options = terms(options, RequestOptions)
    errors_only()
    progress = Console(stderr=True)
    view = AnswerView(Console(), progress, stream=options.stream, as_json=False)
    usage = list[RoleUsage]()
    last: AnswerResponse | None = None
    history: tuple[ChatMessage, ...] = ()

    def say(text: str, style: str = "dim") -> None:
        print_line(progress, text, style=style)

    with reached(options, progress) as client:
        say(_HINT)
        for line in _lines():
            try:
                match re.sub("^/", ":", line).split(maxsplit=1):
                    case []:
                        pass
                    case [":right" | ":wrong", *_] if last is None:
                        say("there is no answer to rate yet: ask a question first", "yellow")
                    case [(":right" | ":wrong") as verdict, *right] if last is not None:
                        client.feedback(
                            last.run_id,
                            accepted=verdict == ":right",
                            right_answer="".join(right),
                        )
                        say(f"your feedback is stored with run {last.run_id}")
                    case [":new"]:
                        history = ()
                    case [":index", *names]:
                        request_options["index"] = "".join(names).split()
                        say(f"searching {''.join(names) or 'all indexes'}")
                    case [":usage"]:
                        view.out.print(usage_table(usage))
                    case [word, *_] if word.startswith(":"):
                        typed = line.split()[0]
                        say(_HINT if word == ":help" else f"{typed} is not a command.\n{_HINT}")
                    case _:
                        last = None
                        request_options["history"] = history
                        last = view.follow(client.stream(line, options.timeout, **request_options))
                        if last.question not in ("", line):
                            say(f"searched as: {last.question}")
                        view.show(last)
                        history = extended(history, line, last.answer)
                        usage.extend(last.usage)
            except GatewayError as error:
                say(str(error), "red")
            except KeyboardInterrupt:
                say("cancelled", "yellow")
    return 0


def _lines() -> Iterator[str]:
    """Yield the lines of standard input, without surrounding spaces. Stop at the end of the input,
    or at `/quit` or a synonym. In a terminal, a prompt is shown, and lines can be edited.
    """
    prompt = ""
    if sys.stdin.isatty():
        prompt = "rolegate> "
        with suppress(ImportError):  # some builds of Python lack readline
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
