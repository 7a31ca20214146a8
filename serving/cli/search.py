"""`rolegate search`: search a running gateway's indexes, and print the passages that match best."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from rich.console import Console
from rich.text import Text
from rolegate.client import Client
from rolegate.client.text import place

from serving.cli.command import POSITIONAL, parse, shown_as
from serving.cli.grid import print_line
from serving.cli.options import (
    JSONConnectionOptions,
    Names,
    Properties,
    document_filter,
    json_of,
    with_client,
)


class SearchOptions(JSONConnectionOptions, kw_only=True):
    """Search a running gateway's indexes; print the passages that match best, best first."""

    query: Annotated[str, POSITIONAL]
    """Find passages that match this text."""
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
    top_k: Annotated[int, shown_as("K")] = 0
    """Print this many passages (default: search.top_k of the gateway's config)."""


def search(arguments: Sequence[str]) -> int:
    """Run `rolegate search`; return the exit status."""
    return with_client(_show, parse(SearchOptions, "search", arguments))


def _show(client: Client, options: SearchOptions) -> None:
    console = Console()
    passages = client.search(
        options.query,
        options.top_k,
        index=options.index,
        filter=document_filter(options.properties),
    )
    for passage in passages:
        if options.json:
            print(json_of(passage))
            continue

        source = place(passage.document or passage.passage_id, passage.page, passage.location)
        title = (passage.title, "bold")
        console.print(Text.assemble(f"{passage.score:.3f} ", title, (f" ({source})", "dim")))
        print_line(console, f"{passage.text}\n", 6)
