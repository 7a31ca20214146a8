"""An HTTP application at an address."""

from aiohttp import web

from router.errors import BadConfig


class HTTPServer:
    """Serves an application until drained. A client that leaves cancels its request."""

    def __init__(self, app: web.Application, grace_s: float) -> None:
        """`grace_s`: how long running requests may take to finish once it is drained."""
        # aiohttp waits this long twice, for the request and then for its task, and for ever if it is 0.
        timeout_s = max(grace_s / 2, 0.01)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=timeout_s)

    async def start(self, address: str, setting: str) -> str:
        """Listen on `host:port` (port 0: any free one); where it listens. Raises `BadConfig`, naming `setting`."""
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port)).start()
        except (OSError, ValueError, OverflowError) as error:
            await self._runner.cleanup()
            raise BadConfig(f"{setting}: cannot listen on {address}: {error}.") from None
        return f"{host}:{self._runner.addresses[0][1]}"

    async def drain(self) -> None:
        """Take nothing new, let running requests finish, and cancel those that do not."""
        await self._runner.cleanup()
