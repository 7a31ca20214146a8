"""The frame of all pages: who looks, what a page may load, its templates, and how an error
looks.
"""

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rolegate.client.text import visible

from router.access import CALLER, Access, check_scope
from router.background import Worker
from router.edge.limits import Limits
from router.edge.pages import formats
from router.edge.pages.sessions import COOKIE, LASTS_S, Sessions
from router.edge.status import HTTP_STATUS, logged_failure
from router.errors import AccessDenied, BadRequest, NoKey
from router.trace.identity import Identity, KeyScope

_HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; "
    "script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_IDENTITY = web.RequestKey("identity", Identity)
_FORM = web.RequestKey("form", dict[str, str])
_ENCODING = "application/x-www-form-urlencoded"
_MOST_FIELDS = 16
_MOST_BYTES = 1 << 17
"""Of forms: they are read before anybody has shown a key."""
_SENT = web.RequestKey("sent", web.StreamResponse)
_EXPIRED = "This form is of another session; go back, load the page anew, and try again."
Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


def identity(request: web.Request) -> Identity:
    """The identity of whoever looks at a page."""
    return request[_IDENTITY]


def field(request: web.Request, name: str) -> str:
    """Return a field of the form that was sent; empty where there is none."""
    return request[_FORM].get(name, "")


class Frame:
    """Pages are added to it, and `openai_app` serves them at every path that is not its own.

    Whatever changes anything is a POST, and each of those must bring the session's token: `csrf` of
    a form, which templates have under that name, or the header `X-CSRF-Token`, which htmx sends by
    itself.
    """

    def __init__(self, access: Access | None = None, limits: Limits | None = None) -> None:
        """`access`: without it, everybody may look."""
        self._access = access
        self._limits = limits or Limits()
        self._sessions = Sessions(access)
        self._static = {
            file.name: file.read_bytes()
            for file in (_HERE / "static").rglob("*")
            if file.suffix in _TYPES
        }
        self._sections: list[tuple[str, str, KeyScope]] = []
        self._rendering = Worker("pages")
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=lambda value: visible(value) if type(value) is str else value,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(formats.FILTERS)
        self._templates.globals["static"] = {
            name: f"/static/{name}?{hashlib.sha256(content).hexdigest()[:12]}"
            for name, content in self._static.items()
        }.__getitem__
        self.routes: list[web.RouteDef] = []
        self._route("GET", "/static/{name}", self._asset)
        self._route("GET", "/sign-in", self._sign_in)
        self._route("POST", "/sign-in", self._signed_in)
        self._route("POST", "/sign-out", self._sign_out)

    def get(self, path: str, page: Page, *, scope: KeyScope = "ask", section: str = "") -> None:
        """Serve a page at `path` to keys of `scope`. `section`: its name among those that every
        page leads to.
        """
        self._route("GET", path, self._admitting(page, scope))
        if section:
            self._sections.append((path, section, scope))

    def post(self, path: str, page: Page, *, scope: KeyScope = "ask") -> None:
        """Serve what changes something, to forms of ours alone."""
        self._route("POST", path, self._admitting(page, scope))

    async def render(
        self, request: web.Request, template: str, status: int = 200, **values: Any
    ) -> web.Response:
        """A page. Templates have `values`, `request`, who looks (`identity`; None where that is not
        known) and the token for forms (`csrf`).
        """
        found = request.get(_IDENTITY)
        shown = [
            (path, name) for path, name, scope in self._sections if found and _opens(found, scope)
        ]
        name = request.cookies.get(COOKIE, "")
        known = {"identity": found, "csrf": self._sessions.token(name), "sections": shown}
        page = self._templates.get_template(template)
        # In a thread, as a large page takes longer than others should have to wait for the event
        # loop.
        text = await self._rendering(partial(page.render, **known, request=request, **values))
        return web.Response(status=status, text=text, content_type="text/html")

    async def part(self, request: web.Request, template: str, **values: Any) -> web.Response:
        """A part of a page for htmx, or else a page of its own, with the `title` and the `run`
        among its values.
        """
        alone = "HX-Request" in request.headers
        return await self.render(
            request, template if alone else "part.html", part=template, **values
        )

    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request for a page, and show what goes wrong as one."""
        try:
            return await handler(request)
        except web.HTTPException as error:
            return await self._failed(request, error.status, error.text or error.reason)
        except ClientConnectionResetError:  # the client is gone
            raise
        except Exception as error:
            sent: web.StreamResponse | None = request.get(_SENT)
            if sent is not None:  # a stream, in which another response would only be text
                if request.transport is not None:
                    request.transport.abort()
                return sent
            if isinstance(error, NoKey) and request.path != "/sign-in":
                if "HX-Request" in request.headers:  # a part of a page that is still open
                    return web.Response(status=401, headers={"HX-Refresh": "true"})
                back = f"?next={quote(request.path_qs, safe='')}" if request.method == "GET" else ""
                return redirect(f"/sign-in{back}")
            failure = logged_failure(error)
            response = await self._failed(request, HTTP_STATUS[failure.code], failure.message)
            if failure.retry_after_s is not None:
                response.headers["Retry-After"] = str(math.ceil(failure.retry_after_s))
            return response

    @staticmethod
    async def protect(request: web.Request, response: web.StreamResponse) -> None:
        """Set what browsers must keep to, whatever answers; to be called before a response is
        sent.
        """
        request[_SENT] = response
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)

    async def _failed(self, request: web.Request, status: int, message: str) -> web.Response:
        template = "sign_in.html" if request.path == "/sign-in" else "error.html"
        return await self.render(
            request, template, status, message=message, next=request.query.get("next", "")
        )

    def _route(self, method: str, path: str, page: Page) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            if method == "POST":
                await self._check_form(request)
            return await page(request)

        self.routes.append(web.route(method, path, handle))

    def _admitting(self, page: Page, scope: KeyScope) -> Page:
        async def admitted(request: web.Request) -> web.StreamResponse:
            found = await self._sessions.identify(request.cookies.get(COOKIE, ""))
            # aiohttp serves each request in a context of its own, so that this reaches its page and
            # no other.
            CALLER.set(found)
            request[_IDENTITY] = found
            check_scope(found, scope)
            with self._access.serving(found) if self._access else nullcontext():
                return await page(request)

        return admitted

    async def _check_form(self, request: web.Request) -> None:
        """Read the form, and see that a page of ours sends it. Raises `AccessDenied` and
        `BadRequest`.
        """
        if request.can_read_body and request.content_type != _ENCODING:
            raise web.HTTPUnsupportedMediaType(text=f"Send the form as {_ENCODING}.")
        origin = request.headers.get("Origin")
        try:
            async with asyncio.timeout(self._limits.opening_s):
                body = await request.clone(client_max_size=_MOST_BYTES).read()
            fields = parse_qsl(
                body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS
            )
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="The form did not come in time.") from None
        except ValueError:
            raise BadRequest(f"The form has more than {_MOST_FIELDS} fields.") from None
        request[_FORM] = dict(fields)
        token = request.headers.get("X-CSRF-Token") or field(request, "csrf")
        ours = origin is None or origin.partition("://")[2] == request.host
        if not ours or not self._sessions.proves(request.cookies.get(COOKIE, ""), token):
            raise AccessDenied(_EXPIRED)

    async def _sign_in(self, request: web.Request) -> web.Response:
        return await self.render(
            request, "sign_in.html", message="", next=request.query.get("next", "")
        )

    async def _signed_in(self, request: web.Request) -> web.Response:
        name = await self._sessions.open(field(request, "key"), request.remote or "")
        response = redirect(_local(request.query.get("next", "")))
        # Behind a proxy that ends TLS, the browser's origin alone says that the cookie may be so.
        secure = request.secure or request.headers.get("Origin", "").startswith("https:")
        response.set_cookie(
            COOKIE, name, max_age=LASTS_S, httponly=True, samesite="Strict", secure=secure
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        self._sessions.close(request.cookies.get(COOKIE, ""))
        response = redirect("/sign-in")
        response.del_cookie(COOKIE, httponly=True, samesite="Strict")
        return response

    async def _asset(self, request: web.Request) -> web.Response:
        if (content := self._static.get(name := request.match_info["name"])) is None:
            raise web.HTTPNotFound(text="There is no such file.")
        # Its address changes with it
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(
            body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=headers
        )


def _opens(found: Identity, scope: KeyScope) -> bool:
    try:
        check_scope(found, scope)
    except AccessDenied:
        return False
    return True


def _local(path: str) -> str:
    """The path, where it leads to a page of ours; else the first page."""
    return (
        path
        if path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
        else "/"
    )


def redirect(path: str) -> web.Response:
    """Lead to another page of ours, with a GET."""
    return web.Response(status=303, headers={"Location": path})
