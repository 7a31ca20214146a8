"""A gateway that supervises its vLLM engines, with fault proxies before them, in a process of its own:
`python -m benchmarks.supervised_gateway CONFIG [--seed N]`.

It prints its address, where the proxies take orders, and the names of the engines in the proxies' order, and goes on
until its standard input ends.
"""

import argparse
import asyncio
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path

from benchmarks.child import child
from router.calls.health import Readiness
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.logs import errors_only
from serving.startup import RunningEngines, start_engines


def _no_retriever(*, cpu_threads: int) -> AbstractAsyncContextManager[None]:
    """The gateway opens its own."""
    return nullcontext()


async def _serve(given: argparse.Namespace) -> None:
    config, readiness = load_config(given.config), Readiness()

    def tell(step: str) -> None:
        print(step, file=sys.stderr)

    async with AsyncExitStack() as stack:
        engines, _ = await start_engines(config, stack, tell, _no_retriever, readiness=readiness)
        proxy = await stack.enter_async_context(
            child("benchmarks.chaos_proxy", *engines.values(), "--seed", str(given.seed))
        )
        *urls, orders = proxy.told
        running = RunningEngines(dict(zip(engines, urls, strict=True)), readiness)
        address = await stack.enter_async_context(running_gateway(config, "127.0.0.1:0", tell, engines=running))
        print(address, orders, *engines, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    errors_only()
    asyncio.run(_serve(parser.parse_args()))
