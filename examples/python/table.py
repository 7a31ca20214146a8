"""Have a rolegate gateway fill a table from Python.

Rows are printed as they change, then the table in Markdown, with the sentences that its cells rest
on. An error goes to the standard error stream, with exit status 1. The key, where the gateway wants
one, is that of the environment variable ROLEGATE_API_KEY.
"""

import argparse
import sys

from rolegate.client import Client, GatewayError, Table
from rolegate.v1.table_service_pb2 import CellState, Row


def show(table: Table) -> None:
    """Print the table, and where its values stand."""
    print(table.to_markdown(), end="")
    for row in table.message.rows:
        for name, cell in zip(table.columns, row.cells, strict=True):
            for citation in cell.citations:
                print(f"  {row.cells[0].value}, {name}: {citation.title}: {citation.quote}")


def changed(row: Row) -> str:
    """The values of a row, or how their cells stand."""
    return ", ".join(
        cell.value or CellState.Name(cell.state).removeprefix("CELL_STATE_").lower()
        for cell in row.cells
    )


def main() -> int:
    """Ask; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument(
        "question", metavar="QUESTION", help='what the rows are: "the cities of Vorland"'
    )
    parser.add_argument(
        "columns", metavar="COLUMNS", help='with stars at keys: "city*, founder, founded:integer"'
    )
    given = parser.parse_args()
    with Client(given.address) as client:
        try:
            with client.stream_table(given.question, given.columns, timeout_s=600) as events:
                for event in events:
                    if event.HasField("row_changed"):
                        print(changed(event.row_changed.row))
            show(Table(event.done))
        except ValueError as error:  # of the columns
            print(error, file=sys.stderr)
            return 1
        except GatewayError as error:
            # The code says whether to try again (UNAVAILABLE), the reason why, the role whose model
            # failed.
            print(f"{error.code.name} {error.reason} {error.role or ''}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
