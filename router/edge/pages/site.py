"""The parts that all pages share: sign-in, security headers, forms, templates, error pages."""

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec.structs import replace
from rolegate.client.text import visible

from router.access import CALLER, Access, check_scope
from router.background import Worker
from router.edge.limits import DEFAULT_LIMITS
from router.edge.pages import formats
from router.edge.pages.sessions import COOKIE, LASTS_S, Sessions
from router.edge.status import HTTP_STATUS, logged_failure
from router.errors import AccessDenied, BadRequest, NoKey, RolegateError
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
_MAX_FIELDS = 16
_MAX_BYTES = 1 << 17
"""`_MAX_FIELDS`: max number of fields in a form. `_MAX_BYTES`: max bytes of a form. Both limits are
low, because a form is read before the caller is identified.
"""
_EXPIRED = "This form belongs to another session; go back, reload the page and try again."
Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


def field(request: web.Request, name: str) -> str:
    """Return the value of a field in the submitted form; empty if the form has no such field."""
    return request[_FORM].get(name, "")


class Site:
    """The web site. Other modules add their pages to it. `openai_app` serves the pages at all paths
    that it does not use itself.

    Every request that changes something is a POST with the CSRF token of the session. The token is
    in the form field `csrf`, or in the header `X-CSRF-Token` if htmx sends the request. Templates
    get the token as the variable `csrf`.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._sessions = Sessions(access)
        self._static = {
            file.name: file.read_bytes()
            for file in (_HERE / "static").rglob("*")
            if file.suffix in _TYPES
        }
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
        self._forms: dict[str, tuple[str, dict[str, Any]]] = {"/sign-in": ("sign_in.html", {})}
        """Pages whose form is shown again if its submission fails, by path: the template, and
        further variables for it.
        """
        self.routes = list[web.RouteDef]()
        self._templates.globals["pages"] = self._paths = set[str]()
        self._route("GET", "/static/{name}", self._asset)
        self._route("GET", "/sign-in", self._form_or_error)
        self._route("POST", "/sign-in", self._signed_in)
        self._route("POST", "/sign-out", self._sign_out)

    def get(self, path: str, page: Page, *, scope: KeyScope = "ask") -> None:
        """Serve a page at `path` to users whose keys have `scope`."""
        self._route("GET", path, page, scope)

    def post(self, path: str, page: Page, *, scope: KeyScope = "ask") -> None:
        """Accept a form that changes something at `path`, from users whose keys have `scope`."""
        self._route("POST", path, page, scope)

    def form(self, path: str, page: Page, template: str, **values: Any) -> None:
        """Serve a form at `path`; `page` handles submissions. If a submission fails, the form is
        shown again with the values as typed. The template can use the variables in `values`, and
        `message` (why the submission failed; empty for a new form), `invalid` (True if a value was
        invalid) and `typed` (the values of the fields; empty for a new form).
        """
        self._forms[path] = template, values
        self.get(path, self._form_or_error)
        self.post(path, page)

    async def render(
        self,
        request: web.Request,
        template: str,
        status: int = 200,
        **values: Any,
    ) -> web.Response:
        """Render a page from a template. The template can use the variables in `values`, and
        `request`, `identity` (the user; None before sign-in) and `csrf` (the CSRF token).
        """
        token = self._sessions.token(_cookie(request))
        common = {"identity": request.get(_IDENTITY), "csrf": token}
        page = self._templates.get_template(template)
        # Rendering runs in a thread, because a large page would block the event loop.
        text = await self._rendering(partial(page.render, **common, request=request, **values))
        return web.Response(status=status, text=text, content_type="text/html")

    async def part(self, request: web.Request, template: str, **values: Any) -> web.Response:
        """Render a template that is a part of a page. For a request by htmx, return the part alone;
        otherwise return a page that contains it. `values` must include `title` and `run`.
        """
        alone = "HX-Request" in request.headers
        return await self.render(
            request, template if alone else "part.html", part=template, **values
        )

    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request for a page. Errors become error pages; a user without a session is
        redirected to the sign-in page.
        """
        try:
            return await handler(request)
        except web.HTTPException as error:
            if _IDENTITY not in request:
                with suppress(RolegateError):  # without a user, the page has no links
                    request[_IDENTITY] = await self._sessions.identify(_cookie(request))
            return await self._form_or_error(request, error.status, error.text or error.reason)
        except ClientConnectionResetError:  # the client has disconnected
            raise
        except Exception as error:
            if isinstance(error, NoKey) and request.path != "/sign-in":
                if "HX-Request" in request.headers:  # an open page updates itself
                    return web.Response(status=401, headers={"HX-Refresh": "true"})
                back = f"?next={quote(request.path_qs, safe='')}" if request.method == "GET" else ""
                return redirect(f"/sign-in{back}")
            failure = logged_failure(error)
            response = await self._form_or_error(
                request, HTTP_STATUS[failure.code], failure.message
            )
            if failure.retry_after_s is not None:
                response.headers["Retry-After"] = str(math.ceil(failure.retry_after_s))
            return response

    @staticmethod
    async def protect(_request: web.Request, response: web.StreamResponse) -> None:
        """Set the security headers of a response. aiohttp calls this before it sends a response."""
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)

    async def _form_or_error(
        self, request: web.Request, status: int = 200, message: str = ""
    ) -> web.Response:
        """Render the form at a path. For paths without a form, render an error page."""
        template, values = self._forms.get(request.path, ("error.html", {}))
        return await self.render(
            request,
            template,
            status,
            message=message,
            invalid=status == 400,
            next=request.query.get("next", ""),
            typed=request.get(_FORM, {}),
            **values,
        )

    def _route(
        self,
        method: str,
        path: str,
        page: Page,
        scope: KeyScope | None = None,
    ) -> None:
        """Serve a page at `path`. `scope`: the scope that the user's key needs; None for a page
        that needs no key.
        """

        async def handle(request: web.Request) -> web.StreamResponse:
            if method == "POST":
                await self._check_form(request)
            if scope is None:
                return await page(request)
            user = await self._sessions.identify(_cookie(request))
            user = replace(user, address=request.remote or "")
            # aiohttp serves each request in its own context, so only this one sees the value.
            CALLER.set(user)
            request[_IDENTITY] = user
            check_scope(user, scope)
            with self._access.serving(user):
                return await page(request)

        self._paths.add(path)
        self.routes.append(web.route(method, path, handle))

    async def _check_form(self, request: web.Request) -> None:
        """Read the form of a request, and check its CSRF token and its origin. Raises
        `AccessDenied` if the token is not that of the session, or if another site sent the form,
        and `BadRequest` for too many fields.
        """
        if request.can_read_body and request.content_type != _ENCODING:
            raise web.HTTPUnsupportedMediaType(
                text=f"This content type is not supported; send the form as {_ENCODING}."
            )
        origin = request.headers.get("Origin")
        try:
            async with asyncio.timeout(DEFAULT_LIMITS.opening_s):
                body = await request.clone(client_max_size=_MAX_BYTES).read()
            fields = parse_qsl(
                body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS
            )
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                text="The form did not arrive in time; send it again."
            ) from None
        except ValueError:
            raise BadRequest(f"The form has more than {_MAX_FIELDS} fields; send fewer.") from None
        ours = origin is None or origin.partition("://")[2] == request.host
        # A form that is shown again gets a new token, so texts of another site must not fill it.
        request[_FORM] = dict(fields) if ours else {}
        token = request.headers.get("X-CSRF-Token") or field(request, "csrf")
        if not ours or not self._sessions.proves(_cookie(request), token):
            raise AccessDenied(_EXPIRED)

    async def _signed_in(self, request: web.Request) -> web.Response:
        name = await self._sessions.open(field(request, "key"), request.remote or "")
        response = redirect(_local(request.query.get("next", "")))
        # Behind a proxy that terminates TLS, only the header Origin shows that the browser uses
        # HTTPS.
        secure = request.secure or request.headers.get("Origin", "").startswith("https:")
        response.set_cookie(
            COOKIE,
            name,
            max_age=LASTS_S,
            httponly=True,
            samesite="Strict",
            secure=secure,
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        self._sessions.close(_cookie(request))
        response = redirect("/sign-in")
        response.del_cookie(COOKIE, httponly=True, samesite="Strict")
        return response

    async def _asset(self, request: web.Request) -> web.Response:
        if (content := self._static.get(name := request.match_info["name"])) is None:
            raise web.HTTPNotFound(text=f"There is no static file {name[:100]!r}; reload the page.")
        # The file may be cached for a year, because its URL contains a hash of the content.
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(
            body=content,
            content_type=_TYPES[Path(name).suffix],
            charset="utf-8",
            headers=headers,
        )


def _cookie(request: web.Request) -> str:
    """Return the name of the session in the request's cookie; empty without a cookie."""
    return request.cookies.get(COOKIE, "")


def _local(path: str) -> str:
    """Return `path` if it is a path on this server, else the path of the home page. This prevents
    redirects to other servers.
    """
    is_local = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
    return path if is_local else "/"


def redirect(path: str) -> web.Response:
    """Return a response that makes the browser get another page of this server."""
    return web.Response(status=303, headers={"Location": path})
