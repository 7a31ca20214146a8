"""An HTTP application at an address."""

from aiohttp import web

from router.access import Access
from router.edge.listening import check_listening, warn_unencrypted
from router.edge.tls import TLS
from router.errors import BadConfig


class HTTPServer:
    """Serves an application until drained. A client that leaves cancels its request."""

    def __init__(
        self, app: web.Application, grace_s: float, *, access: Access | None = None, tls: TLS | None = None
    ) -> None:
        """`grace_s`: how long running requests may take to finish once it is drained. `access`: the application lets
        in by keys; without it, any address will do.
        """
        self._access, self._tls = access, tls
        # aiohttp waits this long twice, for the request and then for its task, and for ever if it is 0.
        timeout_s = max(grace_s / 2, 0.01)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=timeout_s)

    async def start(self, address: str, setting: str) -> str:
        """Listen on `host:port` (port 0: any free one); where it listens.

        Raises `BadConfig`, naming `setting`, also for an address beyond the loopback while there are no keys, and
        `StoreFailed`.
        """
        if self._access:
            await check_listening(address, setting, self._access)
            warn_unencrypted(address, self._tls)
        context = self._tls.for_http() if self._tls else None
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=context).start()
        except (OSError, ValueError, OverflowError) as error:
            await self._runner.cleanup()
            raise BadConfig(f"{setting}: cannot listen on {address}: {error}.") from None
        return f"{host}:{self._runner.addresses[0][1]}"

    async def drain(self) -> None:
        """Take nothing new, let running requests finish, and cancel those that do not."""
        await self._runner.cleanup()
