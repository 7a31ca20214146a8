"""Milvus Lite in a process: a server with Milvus's protocol."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_SERVER = """
import sys
from milvus_lite.adapter.grpc.server import start_server_in_thread
server, database, port = start_server_in_thread(sys.argv[1], port=int(sys.argv[2]))
print(port, flush=True)
sys.stdin.read()
server.stop(grace=1).wait()
database.close()
"""


class MilvusServer:
    """A server that can be stopped and started again on the same port, with the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        command = [sys.executable, "-c", _SERVER, str(self._folder), str(self._port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """End the server, and wait until its data are on the disk."""
        if self._process:
            self._process.communicate()
            assert self._process.returncode == 0
            self._process = None

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the server accept connections, but answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None
    ) -> None:
        self.kill()  # its data are not used any more, and closing them takes seconds
