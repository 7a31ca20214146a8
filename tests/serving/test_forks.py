"""Child processes of a running gateway."""

import subprocess
import sys

_STARTING = """
import serving
import asyncio, grpc.aio, uvloop

async def main():
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0
    await server.stop(0)

uvloop.run(main())
"""


def test_grpc_s_fork_handlers_do_not_run() -> None:
    """They would write to standard error, and crash about one process in a hundred."""
    ended = subprocess.run(
        [sys.executable, "-c", _STARTING], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
