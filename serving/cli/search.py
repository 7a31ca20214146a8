"""`rolegate search`: passages of a running gateway's index that are nearest to a query."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from rolegate.client import Client
from rolegate.client.text import place

from serving.cli.options import add_connection, json_of, new_parser, with_client


def search(arguments: Sequence[str]) -> int:
    """Print the passages, best first."""
    parser = new_parser("search", __doc__)
    parser.add_argument("query", metavar="QUERY", help="what to look for, in words")
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="passages (default: the gateway's number)"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each passage")
    add_connection(parser)
    given = parser.parse_args(arguments)
    return with_client(
        given, lambda client: _show(client, given.query, given.top_k, as_json=given.json)
    )


def _show(client: Client, query: str, top_k: int, *, as_json: bool) -> int:
    console = Console()
    for passage in client.search(query, top_k):
        if as_json:
            print(json_of(passage))
            continue
        console.print(
            Text.assemble(
                f"{passage.score:.3f} ",
                (passage.title, "bold"),
                (f" ({place(passage.document or passage.passage_id, passage.page)})", "dim"),
            )
        )
        console.print(Padding(Text(passage.text), (0, 0, 1, 6)))
    return 0
