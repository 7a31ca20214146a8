"""Make single model calls through the gateway's RPC `Complete`, or through LiteLLM's proxy server.
`benchmarks.overhead` compares the two.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import grpc.aio
import psutil
from rolegate.v1.completion_service_pb2 import ChatMessage, CompleteRequest
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.usage_pb2 import ROLE_ANSWER

from benchmarks.gateway import MAX_TOKENS
from benchmarks.load import question
from router.errors import RolegateError

Ask = Callable[[int], Awaitable[object]]
"""Function that takes the number of a question and asks this question."""
_READY_S = 180
_CONFIG = """
model_list:
  - model_name: answerer
    litellm_params: {{model: openai/answerer, api_base: "{base_url}", api_key: none}}
litellm_settings: {{telemetry: false, num_retries: 0}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


@asynccontextmanager
async def completing(address: str) -> AsyncIterator[Ask]:
    """Connect to the gateway at `address`. Yield a function that requests a completion of the
    answerer's model.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub = CompletionServiceStub(channel)

        async def ask(number: int) -> object:
            messages = [ChatMessage(role="user", content=question(number))]
            request = CompleteRequest(role=ROLE_ANSWER, messages=messages)
            return await stub.Complete(request, timeout=60)

        yield ask


@asynccontextmanager
async def posting(base_url: str) -> AsyncIterator[Ask]:
    """Connect to the OpenAI-compatible server at `base_url`. Yield a function that requests a
    completion of the answerer's model.
    """
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def ask(number: int) -> object:
            messages = [{"role": "user", "content": question(number)}]
            body = {"model": "answerer", "messages": messages, "max_tokens": MAX_TOKENS}
            async with session.post(f"{base_url}/chat/completions", json=body) as response:
                return await response.read()

        yield ask


@asynccontextmanager
async def litellm_proxy(
    python: Path, folder: Path, base_url: str
) -> AsyncIterator[tuple[psutil.Process, str]]:
    """Start LiteLLM's proxy server with one worker. Yield the server's process and base URL.

    `python`: interpreter of an environment with `litellm[proxy]`. `folder`: folder for the server's
    config and log. `base_url`: base URL of the models behind the proxy. Raises `RolegateError` if
    the server does not start.
    """
    config = folder / "litellm.yaml"
    config.write_text(_CONFIG.format(base_url=base_url), "utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "litellm.log").open("wb") as log:
        command = f"--config {config.name} --host 127.0.0.1 --port {port} --num_workers 1"
        process = await asyncio.create_subprocess_exec(
            *(str(python.with_name("litellm")), *command.split(), "--telemetry", "False"),
            cwd=folder,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
            stdout=log,
            stderr=log,
        )
    try:
        async with (
            asyncio.timeout(_READY_S),
            aiohttp.ClientSession(raise_for_status=True) as session,
        ):
            while process.returncode is None:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/health/liveliness"):
                        break
                await asyncio.sleep(0.5)
            else:
                raise RolegateError(
                    f"LiteLLM's proxy server ended while starting; see {folder / 'litellm.log'}."
                )
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}/v1"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
