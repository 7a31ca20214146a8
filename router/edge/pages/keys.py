"""The page with keys and tenants, and forms with which an operator changes them."""

import time

from aiohttp import web

from router.administration import (
    KEY_LIMITS,
    LIMITS,
    Administration,
    CreatedKey,
    dollars,
    limit_from_text,
)
from router.edge.pages.site import Site, field, redirect
from router.errors import BadRequest
from router.trace.identity import SCOPES

_HOUR_S = 3600.0
_EVENTS = 50
"""Number of events of the audit log on the page."""


def add_keys(site: Site, administration: Administration) -> None:
    """Add the page and its forms to `site`. Only operators may use them."""

    async def shown(request: web.Request, created: CreatedKey | None = None) -> web.Response:
        return await site.render(
            request,
            "keys.html",
            created=created,
            keys=(await administration.keys())[::-1],
            tenants=await administration.tenants(),
            scopes=sorted(SCOPES),
            limits=LIMITS,
            key_limits=KEY_LIMITS,
            dollars=dollars,
            events=await administration.audit(_EVENTS),
        )

    # The text of a new key is only in the response to the form, so these do not redirect.
    async def create(request: web.Request) -> web.Response:
        scopes = [scope for scope in SCOPES if field(request, scope)]
        tenant = field(request, "tenant") or None
        created = await administration.create_key(tenant, scopes, field(request, "label"))
        return await shown(request, created)

    async def rotate(request: web.Request) -> web.Response:
        grace_s = (_number(request, "hours") or 0) * _HOUR_S
        return await shown(
            request, await administration.rotate_key(field(request, "key_id"), grace_s)
        )

    async def expire(request: web.Request) -> web.Response:
        hours = _number(request, "hours")
        at = None if hours is None else time.time() + hours * _HOUR_S
        await administration.expire_key(field(request, "key_id"), at)
        return redirect("/keys")

    async def revoke(request: web.Request) -> web.Response:
        await administration.revoke_key(field(request, "key_id"))
        return redirect("/keys")

    async def update(request: web.Request) -> web.Response:
        changes = {
            **{limit: _number(request, limit) for limit in LIMITS},
            **{name: bool(field(request, name)) for name in ("redact", "training")},
            "indexes": field(request, "indexes").replace(",", " ").split(),
        }
        await administration.update_tenant(field(request, "name"), changes)
        return redirect("/keys")

    async def limit(request: web.Request) -> web.Response:
        limits = {name: _number(request, name) for name in KEY_LIMITS}
        await administration.update_key(field(request, "key_id"), limits)
        return redirect("/keys")

    site.get("/keys", shown, scope="operate")
    for form in (create, rotate, expire, limit, revoke, update):
        site.post(f"/keys/{form.__name__}", form, scope="operate")


def _number(request: web.Request, name: str) -> int | None:
    """Return the number in a field of the form; None for an empty field. Dollars are returned in
    billionths of a dollar. Raises `BadRequest` for any other text.
    """
    try:
        return limit_from_text(field(request, name) or "none", in_dollars="usd" in name)
    except BadRequest as error:
        raise BadRequest(f"{name}: {error}.") from None
