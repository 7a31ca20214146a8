"""A gateway that supervises its vLLM engines, with fault proxies before them, in a process of its own:
`python -m benchmarks.supervised_gateway CONFIG [--seed N]`.

It prints its address, where the proxies take orders, and the names of the engines in the proxies' order, and goes on
until its standard input ends.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path

from msgspec.structs import replace

from benchmarks.child import child
from serving.composition import running_gateway
from serving.config.config import RoleConfig, RolesConfig
from serving.config.file import load_config
from serving.logs import errors_only
from serving.startup import slow_parts


def _no_retriever(*, cpu_threads: int) -> AbstractAsyncContextManager[None]:
    """The gateway opens its own."""
    return nullcontext()


def _behind(proxies: Mapping[str, str], role: RoleConfig) -> RoleConfig:
    """The role with its engine's proxy for an endpoint."""
    return replace(role, engine=None, base_url=proxies[role.engine]) if role.engine else role


async def _serve(given: argparse.Namespace) -> None:
    config = load_config(given.config)

    def tell(step: str) -> None:
        print(step, file=sys.stderr)

    async with AsyncExitStack() as stack:
        engines, _ = await slow_parts(config, stack, tell, _no_retriever)
        proxy = await stack.enter_async_context(
            child("benchmarks.chaos_proxy", *engines.values(), "--seed", str(given.seed))
        )
        *urls, orders = proxy.told
        proxies = dict(zip(engines, urls, strict=True))
        roles = RolesConfig(**{name: _behind(proxies, role) for name, role in config.roles.by_name.items()})
        config = replace(config, roles=roles)
        address = await stack.enter_async_context(running_gateway(config, "127.0.0.1:0", tell))
        print(address, orders, *engines, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    errors_only()
    asyncio.run(_serve(parser.parse_args()))
