"""Asks a rolegate gateway from Python: `python ask.py HOST:PORT QUESTION [answer|stream]`.

`answer` (the default) prints the answer and the sentences that it rests on, `stream` also what happens on the way. An
error goes to the standard error stream, with exit status 1.
"""

import sys

from rolegate.client import Client, GatewayError
from rolegate.v1.answer_service_pb2 import AnswerResponse


def show(answer: AnswerResponse) -> None:
    """Print the answer, and where it stands."""
    print(answer.answer)
    for citation in answer.citations:
        page = f", p. {citation.page}" if citation.HasField("page") else ""
        print(f"  {citation.title}{page}: {citation.quote}")


def main(address: str, question: str, method: str = "answer") -> int:
    """Ask; the exit status."""
    with Client(address) as client:
        try:
            if method == "answer":
                show(client.ask(question, timeout_s=60))
                return 0
            with client.stream(question, timeout_s=60) as events:  # leaving it early stops the work upstream
                for event in events:
                    print(event.event_number, event.WhichOneof("event"))
            show(event.done)
        except GatewayError as error:
            # The code says whether to try again (UNAVAILABLE), the reason why, the role whose model failed.
            print(f"{error.code.name} {error.reason} {error.role or ''}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
