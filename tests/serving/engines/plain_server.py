"""A server with a health check: `python -S plain_server.py PORT FOLDER`.

A file `broken` in the folder makes it exit at its start with code 3; a file `loading` makes it not
ready. It writes its process id to `pid`.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Answers the health check."""

    def do_GET(self) -> None:
        self.send_response(503 if (folder / "loading").exists() else 200)
        self.end_headers()


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if (folder / "broken").exists():
        print("cannot read the model")
        sys.exit(3)
    with HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        (folder / "pid").write_text(str(os.getpid()))
        server.serve_forever()
