"""Web pages: runs, usage and versions, served by the OpenAI-compatible server."""

from router.edge.pages.frame import Frame, identity

__all__ = ["Frame", "identity"]
