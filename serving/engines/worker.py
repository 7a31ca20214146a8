"""One of several gateway processes that share an address: `python -m serving.worker SOCKET`, for `serving.workers`."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

from router.calls.health import Readiness
from router.errors import RolegateError
from router.runs.live import meanwhile
from serving.composition import running_gateway
from serving.engines.beside import Beside
from serving.engines.workers import Down, Failed, Line, Order, Ready, Step, Wire
from serving.logs import plain_tracebacks
from serving.signals import until_signalled


async def work(connected: socket.socket) -> int:
    """Serve what is ordered until a signal comes, or whoever ordered it is gone; the exit status."""
    wire = await Wire.over(connected)
    lines = aiter(wire)
    order = await anext(lines)
    assert isinstance(order, Order)
    readiness = Readiness()
    service = running_gateway(
        order.config,
        order.address,
        lambda said: wire.tell(Step(said)),
        order.http,
        beside=Beside(order.engines, readiness),
    )
    try:
        async with meanwhile(_listen(lines, readiness)):
            await until_signalled(service, lambda _address: wire.tell(Ready()))
    except (RolegateError, OSError) as error:
        wire.tell(Failed(str(error)))
        return 1
    finally:
        await wire.close()
    return 0


async def _listen(lines: AsyncIterator[Line], readiness: Readiness) -> None:
    heard: set[str] = set()
    async for line in lines:
        if isinstance(line, Down):
            for source in heard - line.sources.keys():
                readiness.say(source, (), None)
            for source, (needs, why) in line.sources.items():
                readiness.say(source, needs, why)
            heard = set(line.sources)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    plain_tracebacks()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(asyncio.run(work(socket.socket(fileno=int(sys.argv[1])))))
