"""A real gateway of scripted models in another process: `python -m tests.scripted_gateway`."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.errors import UpstreamUnavailable
from router.models import Prompt
from router.protocol import Passage
from tests.router.accounts import open_access
from tests.router.deployment import STOP, Deployment, block, report
from tests.router.edge.wire import whole_server
from tests.router.retriever import FixedRetriever
from tests.scripted_model import Answer, ScriptedModel

ROOT = Path(__file__).parents[1]
QUESTION = "When was the director of Heat born?"
DEAD_QUESTION = "Who answers when no model does?"
LONGEST_QUESTION = 200
DIRECTOR = "Who directed Heat?"
FOLLOW_UP = "And when was he born?"
ASKED_BACK = "Whom do you mean by “he”?"
TASKS = {
    "title": '{"title": "🎬 The director of Heat"}',
    "tags": '{"tags": ["Film", "General"]}',
    "follow-up": '{"follow_ups": ["Where was he born?"]}',
}
"""Output of the answerer's model for tasks of chat tools, by a word of the task."""
BORN = "When was Michael Mann born?"
PASSAGES = {
    DIRECTOR: [Passage("p1", "Heat", "Heat is a film by Michael Mann. It [sic] is long.", 0.9)],
    BORN: [Passage("p2", "Michael Mann", "Michael Mann was born in 1943.", 0.8)],
}


def delegates(prompt: Prompt) -> Answer:
    """Delegate one sub-query in each of two rounds, then stop."""
    if prompt.messages[1].content == DEAD_QUESTION:
        return UpstreamUnavailable("connection refused", endpoint="http://127.0.0.1:9/v1")
    return {2: block(DIRECTOR), 4: block(BORN)}.get(len(prompt.messages), STOP)


def condenses(prompt: Prompt) -> Answer:
    """Resolve `FOLLOW_UP` if the conversation is about Heat, and else ask back; leave every other
    question as it is.
    """
    history, _, asked = prompt.messages[1].content.partition("<question>")
    if asked.removesuffix("</question>") != FOLLOW_UP:
        return f"<question>{asked}"
    if "Heat" in history:
        return f"<question>{QUESTION}</question>"
    return f"<clarify>{ASKED_BACK}</clarify>"


def executes(prompt: Prompt) -> Answer:
    """Search once, then report in the words of the passage."""
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    if sub_query == DIRECTOR:
        return report("Michael Mann", "Heat is a film by Michael Mann.")
    return report("1943", "Michael Mann was born in 1943.")


def answers(prompt: Prompt) -> Answer:
    """Answer, or do the background task of a chat tool."""
    asked = prompt.messages[-1].content
    if not asked.startswith("### Task:"):
        return "<answer>in 1943</answer>"
    return next(text for word, text in TASKS.items() if word in asked)


async def serve() -> None:
    """Listen on free ports, print the addresses of gRPC and HTTP, and run until standard input
    ends.
    """
    retriever = FixedRetriever(PASSAGES)
    deployment = Deployment(
        delegator=ScriptedModel(delegates, "backbone"),
        executor=ScriptedModel(executes, "small"),
        answerer=ScriptedModel(answers, "fixed"),
        retriever=retriever,
        condenser=ScriptedModel(condenses, "backbone"),
    )
    server = whole_server(deployment, retriever=retriever, max_question_chars=LONGEST_QUESTION)
    door = HTTPServer(
        openai_app(deployment.gateway(max_question_chars=LONGEST_QUESTION), open_access()), 1.0
    )
    port = await server.start("127.0.0.1:0")
    print(f"127.0.0.1:{port} {await door.start('127.0.0.1:0', 'http')}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await door.drain()
    await server.drain(1.0)


def environment() -> dict[str, str]:
    """Return the environment of a child that imports this checkout."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"}


@contextmanager
def running() -> Iterator[str]:
    """Run the gateway in a process, and yield its gRPC address, host:port."""
    with addresses() as (address, _):
        yield address


@contextmanager
def addresses() -> Iterator[tuple[str, str]]:
    """Run the gateway in a process, and yield the addresses, host:port, of gRPC and the
    OpenAI-compatible server.
    """
    command = [sys.executable, "-m", "tests.scripted_gateway"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address, door = process.stdout.readline().split()
        yield address, door
        process.communicate()
    assert process.returncode == 0


if __name__ == "__main__":
    asyncio.run(serve())
