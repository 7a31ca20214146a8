"""Web pages for questions, runs, usage, documents, keys and executor versions. The
OpenAI-compatible HTTP server also serves these pages.
"""

from router.edge.pages.site import Site

__all__ = ["Site"]
