"""The page with the uploaded documents of a tenant, the last build of their index, and the indexes
of the config. It shows which documents are indexed and which could not be read.
"""

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

from router.access import caller
from router.edge.pages.site import Site
from router.edge.status import failure_of
from router.uploads import Uploads


def add_documents(
    site: Site, uploads: Uploads | None, passages: Callable[[], Mapping[str, int | None]]
) -> None:
    """Add the page to `site`, for users whose keys have the scope `documents`. `uploads`: None if
    the gateway accepts no uploads. `passages`: function that returns the number of passages of each
    index, by the index's name, for the config's indexes on this machine; None for an index that
    cannot be read. The function may block.
    """

    async def shown(request: web.Request) -> web.Response:
        build = await uploads.build(caller().books_on) if uploads else None
        error = failure_of(build.error, caller()).message if build and build.error else ""
        return await site.render(
            request,
            "documents.html",
            tenant=caller().books_on,
            build=build,
            error=error,
            passages=await asyncio.to_thread(passages),
        )

    site.get("/documents", shown, scope="documents")
