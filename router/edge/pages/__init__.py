"""Web pages with runs, usage and versions of the executor. The HTTP server that is compatible with
OpenAI's API serves them too.
"""

from router.edge.pages.site import Site

__all__ = ["Site"]
