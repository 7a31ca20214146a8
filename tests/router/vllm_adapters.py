"""An HTTP server that loads adapters like vLLM 0.32, with its messages."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

BASE = "mini-executor"
LARGEST_RANK = 32
_REFUSED = "Call to add_lora method failed: "


class AdapterServer:
    """Adapters of the server, and the load requests that it got."""

    def __init__(self) -> None:
        self.base_url = ""
        self.adapters: dict[str, str] = {}
        """Folders by name."""
        self.keys: list[str | None] = []
        """Authorization of every request."""
        self.shapes: str = ""
        """PyTorch's message about weights that do not fit; empty if they do."""

    async def models(self, request: web.Request) -> web.Response:
        """Return the base model and its adapters."""
        self.keys.append(request.headers.get("Authorization"))
        cards = [{"id": BASE, "object": "model", "root": "/models/mini", "parent": None}]
        cards += [
            {"id": name, "object": "model", "root": path, "parent": BASE}
            for name, path in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": cards})

    async def load(self, request: web.Request) -> web.Response:
        """Load an adapter, or return the reason against it."""
        self.keys.append(request.headers.get("Authorization"))
        asked = await request.json()
        name = asked["lora_name"]
        folder = Path(asked["lora_path"])
        if name in self.adapters:
            return _failure(400, f"The lora adapter '{name}' has already been loaded.")
        if not (folder / "adapter_config.json").is_file():
            return _failure(404, f"Loading lora {name} failed: No adapter found for {folder}")
        if (rank := json.loads((folder / "adapter_config.json").read_text())["r"]) > LARGEST_RANK:
            message = f"LoRA rank {rank} is greater than max_lora_rank {LARGEST_RANK}."
            return _failure(500, _REFUSED + message)
        if self.shapes:
            return _failure(500, _REFUSED + self.shapes)
        self.adapters[name] = str(folder)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        """Unload an adapter, with vLLM's reply."""
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return _failure(404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


def _failure(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "InternalServerError", "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


@web.middleware
async def _as_fastapi(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return FastAPI's reply for an unknown route."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(
            status=404, text='{"detail":"Not Found"}', content_type="application/json"
        )


@asynccontextmanager
async def adapter_server(
    *, updating: bool = True, root: str = "/v1"
) -> AsyncIterator[AdapterServer]:
    """Serve on a free port.

    `updating` starts it with loading enabled. `root` is the path prefix, empty for SGLang.
    """
    server = AdapterServer()
    app = web.Application(middlewares=[_as_fastapi])
    app.add_routes([web.get("/v1/models", server.models)])
    if updating:
        app.add_routes([web.post(f"{root}/load_lora_adapter", server.load)])
        app.add_routes([web.post(f"{root}/unload_lora_adapter", server.unload)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
