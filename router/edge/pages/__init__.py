"""Web pages: runs, usage and versions, served by the OpenAI-compatible server."""

from router.edge.pages.site import Site

__all__ = ["Site"]
