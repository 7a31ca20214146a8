"""Ask a rolegate gateway from Python.

`answer` (the default) prints the answer and the sentences that it rests on, `stream` also what
happens on the way. An error goes to the standard error stream, with exit status 1. The key, where
the gateway wants one, is that of the environment variable ROLEGATE_API_KEY.
"""

import argparse
import sys

from rolegate.client import Client, GatewayError
from rolegate.v1.answer_service_pb2 import AnswerResponse


def show(answer: AnswerResponse) -> None:
    """Print the answer, and where it stands."""
    print(answer.answer)
    for citation in answer.citations:
        page = f", p. {citation.page}" if citation.HasField("page") else ""
        print(f"  {citation.title}{page}: {citation.quote}")


def main() -> int:
    """Ask; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("question", metavar="QUESTION")
    parser.add_argument("method", nargs="?", choices=("answer", "stream"), default="answer")
    given = parser.parse_args()
    with Client(given.address) as client:
        try:
            if given.method == "answer":
                show(client.ask(given.question, timeout_s=60))
                return 0
            # Leaving it early stops the work upstream
            with client.stream(given.question, timeout_s=60) as events:
                for event in events:
                    print(event.event_number, event.WhichOneof("event"))
            show(event.done)
        except GatewayError as error:
            # The code says whether to try again (UNAVAILABLE), the reason why, the role whose model
            # failed.
            print(f"{error.code.name} {error.reason} {error.role or ''}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
