"""Pages for people: runs, usage and versions, served beside the OpenAI-compatible server."""

from router.edge.pages.frame import Frame, identity

__all__ = ["Frame", "identity"]
