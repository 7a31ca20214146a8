"""The gRPC service for uploaded documents."""

from collections.abc import AsyncIterator
from typing import Any

from rolegate.v1 import document_service_pb2 as pb
from rolegate.v1 import document_service_pb2_grpc as pb_grpc

from router.access import caller
from router.edge.grpc.convert import to_proto
from router.edge.grpc.convert_request import page_size
from router.edge.status import failure_of
from router.errors import BadRequest
from router.uploads import Uploads, accepting

_PAGE = 100
_MAX_SKIPPED = 1000


class DocumentServicer(pb_grpc.DocumentServiceServicer):
    """Implements `DocumentService`, for the documents of the caller's tenant."""

    def __init__(self, uploads: Uploads | None) -> None:
        """`uploads`: None if the gateway accepts no uploads."""
        self._uploads = uploads

    async def UploadDocument(
        self, requests: AsyncIterator[pb.UploadDocumentRequest], _context: Any
    ) -> pb.UploadDocumentResponse:
        """Store a document that the client streams, and return its description."""
        uploads = accepting(self._uploads)
        first = await anext(requests, None)
        if first is None:
            raise BadRequest(
                "name is missing: the upload has no message; send the name in its first message."
            )

        async def content() -> AsyncIterator[bytes]:
            yield first.content
            async for request in requests:
                yield request.content

        stored = await uploads.upload(
            caller().books_on,
            first.name,
            first.size_bytes,
            content(),
            wait=first.wait,
        )
        return to_proto(pb.UploadDocumentResponse, document=stored)

    async def ListDocuments(
        self, request: pb.ListDocumentsRequest, _context: Any
    ) -> pb.ListDocumentsResponse:
        """Return a page of the documents, sorted by name."""
        size = page_size(request.page_size, _PAGE)
        build = await accepting(self._uploads).build(caller().books_on)
        rest = [stored for stored in build.documents if stored.name > request.page_token]
        return to_proto(
            pb.ListDocumentsResponse,
            documents=rest[:size],
            next_page_token=rest[size - 1].name if len(rest) > size else "",
        )

    async def DeleteDocument(
        self, request: pb.DeleteDocumentRequest, _context: Any
    ) -> pb.DeleteDocumentResponse:
        """Delete a document."""
        await accepting(self._uploads).delete(caller().books_on, request.name)
        return pb.DeleteDocumentResponse()

    async def GetBuild(self, _request: pb.GetBuildRequest, _context: Any) -> pb.GetBuildResponse:
        """Return the state of the index of the tenant's documents, and how its last build ended."""
        build = await accepting(self._uploads).build(caller().books_on)
        return to_proto(
            pb.GetBuildResponse,
            build,
            documents=build.indexed,
            skipped=build.skipped[:_MAX_SKIPPED],
            error=failure_of(build.error, caller()).message if build.error else "",
        )
