"""The page with a tenant's uploaded documents: what is indexed, what was not read, last build."""

from aiohttp import web

from router.access import caller
from router.edge.pages.site import Site
from router.edge.status import failure_of
from router.uploads import Uploads


def add_documents(site: Site, uploads: Uploads) -> None:
    """Add the page to `site`, for users whose keys have the scope `documents`."""

    async def shown(request: web.Request) -> web.Response:
        build = await uploads.build(caller().books_on)
        error = failure_of(build.error, caller()).message if build.error else ""
        return await site.render(
            request,
            "documents.html",
            tenant=caller().books_on,
            build=build,
            error=error,
        )

    site.get("/documents", shown, scope="documents")
