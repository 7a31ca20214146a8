"""A server that is well as long as nothing in its folder says otherwise: `python -S plain_server.py
PORT FOLDER`.

With a file `broken` there, it ends at its start, with code 3; with one called `loading`, it is not
ready. It writes its process number to `pid`.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Says that it is well."""

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
