"""`rolegate documents`: upload documents to a running gateway, and list and delete them."""

from collections.abc import Sequence
from datetime import UTC
from typing import Annotated

from rolegate.client import Client
from rolegate.v1 import document_service_pb2 as pb

from router.errors import BadConfig
from serving.cli.command import POSITIONAL, run_subcommand
from serving.cli.grid import counted, new_table
from serving.cli.options import (
    ConnectionOptions,
    File,
    JSONConnectionOptions,
    Name,
    json_of,
    show_each,
    with_client,
)
from serving.cli.tables import word

_ABOUT = """Upload documents to a running gateway, and list and delete them.

The API key needs the scope `documents`. The documents belong to the tenant of the key, and only
this tenant can search them. They are in the index `uploads`.
"""


class UploadOptions(JSONConnectionOptions, kw_only=True):
    """Options of `documents upload`."""

    files: Annotated[tuple[File, ...], POSITIONAL]
    """Upload these files."""
    name: Name = ""
    """Store the document under this name, such as contracts/acme.pdf; allowed with a single file
    (default: the file's name).
    """
    wait: bool = False
    """Wait until searches find the documents. Then exit with status 1, and show the reasons, if
    some documents of the tenant could not be read (default: exit when the files are stored).
    """


class DeleteOptions(ConnectionOptions, kw_only=True):
    """Options of `documents delete`."""

    names: Annotated[tuple[Name, ...], POSITIONAL]
    """Delete the documents with these names."""


def documents(arguments: Sequence[str]) -> int:
    """Run `rolegate documents`; return the exit status."""
    return run_subcommand(
        "documents",
        _ABOUT,
        {
            "upload": _upload,
            "list": _list,
            "delete": _delete,
            "build": _build,
        },
        arguments,
        with_client,
    )


def _upload(client: Client, options: UploadOptions) -> bool:
    """Upload files; a file replaces a document of the same name."""
    if options.name and len(options.files) > 1:
        raise BadConfig(
            "--name: several files cannot have the same name; give one file, or leave out --name."
        )
    for number, file in enumerate(options.files, 1):
        wait = options.wait and number == len(options.files)
        document = client.upload(file, options.name, wait=wait)
        print(json_of(document) if options.json else f"{document.name}: stored")
    return options.wait and _build(client, options)


def _list(client: Client, options: JSONConnectionOptions) -> None:
    """List documents, and say for each whether searches find it, and which parts were not read."""
    documents = list(client.list_documents())
    rows = (
        (
            document.name,
            word(pb.DocumentState, document.state),
            document.not_read,
            f"{document.upload_time.ToDatetime(UTC):%Y-%m-%d %H:%M}",
            document.size_bytes,
            document.passages,
        )
        for document in documents
    )
    columns = ("document", "state", "not read", "uploaded (UTC)", "bytes", "passages")
    show_each(documents, lambda: new_table(columns, rows, texts=4), as_json=options.json)


def _delete(client: Client, options: DeleteOptions) -> None:
    """Delete documents; the gateway then rebuilds the index, and searches no longer find them."""
    for name in options.names:
        client.delete_document(name)
        print(f"{name}: deleted")


def _build(client: Client, options: JSONConnectionOptions) -> bool:
    """Show whether searches find all stored documents, and which documents could not be read.

    The gateway builds the index by itself after each upload and deletion. The exit status is 1 if
    this is not finished, or if a document could not be read.
    """
    build = client.get_build()
    if options.json:
        print(json_of(build))
    else:
        indexed = f"{counted(build.documents, 'document')}, {counted(build.passages, 'passage')}"
        current = "up to date" if build.up_to_date else "not up to date"
        print(f"{word(pb.BuildState, build.state)}: {indexed}, {current}")
        for line in (build.error, *(document.not_read for document in build.skipped)):
            if line:
                print(line)
    return not build.up_to_date or bool(build.skipped)
