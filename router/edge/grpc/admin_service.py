"""The gRPC service for keys and tenants."""

from collections.abc import Sequence
from typing import Any

from rolegate.v1 import admin_service_pb2 as pb
from rolegate.v1 import admin_service_pb2_grpc as pb_grpc

from router.access import LAST_EVENT, Key, Tenant
from router.administration import KEY_LIMITS, SETTINGS, Administration
from router.edge.grpc.convert import to_proto
from router.edge.grpc.convert_request import from_proto, page_size, time_field
from router.errors import BadRequest

_PAGE = 100
_UNKNOWN = "page_token: is unknown; send the next_page_token of the previous page, or none."


class AdminServicer(pb_grpc.AdminServiceServicer):
    """Implements `AdminService`."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def CreateKey(self, request: pb.CreateKeyRequest, _context: Any) -> pb.CreateKeyResponse:
        """Create a key, and return its text."""
        tenant = request.tenant if request.HasField("tenant") else None
        created = await self._administration.create_key(tenant, request.scopes, request.label)
        return pb.CreateKeyResponse(
            key_text=created.text, key=_key_to_proto(created.key), first=created.first
        )

    async def ListKeys(self, request: pb.ListKeysRequest, _context: Any) -> pb.ListKeysResponse:
        """Return a page of the keys, oldest first."""
        keys, token = _page(await self._administration.keys(), "key_id", request)
        return pb.ListKeysResponse(keys=map(_key_to_proto, keys), next_page_token=token)

    async def RotateKey(self, request: pb.RotateKeyRequest, _context: Any) -> pb.RotateKeyResponse:
        """Replace a key by a new key, and return the text of the new key."""
        grace_s = time_field(request, "grace") or 0.0
        created = await self._administration.rotate_key(request.key_id, grace_s)
        assert created.replaced is not None
        return pb.RotateKeyResponse(
            key_text=created.text,
            key=_key_to_proto(created.key),
            replaced=_key_to_proto(created.replaced),
        )

    async def ExpireKey(self, request: pb.ExpireKeyRequest, _context: Any) -> pb.ExpireKeyResponse:
        """Set or remove the expiry of a key, and return the key."""
        at = time_field(request, "expire_time")
        key = await self._administration.expire_key(request.key_id, at)
        return pb.ExpireKeyResponse(key=_key_to_proto(key))

    async def RevokeKey(self, request: pb.RevokeKeyRequest, _context: Any) -> pb.RevokeKeyResponse:
        """Revoke a key, and return it."""
        key, last = await self._administration.revoke_key(request.key_id)
        return pb.RevokeKeyResponse(key=_key_to_proto(key), last=last)

    async def UpdateKey(self, request: pb.UpdateKeyRequest, _context: Any) -> pb.UpdateKeyResponse:
        """Change limits of a key, and return the key."""
        changes = _changes(request.key, request.update_mask.paths, KEY_LIMITS)
        key = await self._administration.update_key(request.key.key_id, changes)
        return pb.UpdateKeyResponse(key=_key_to_proto(key))

    async def GetTenant(self, request: pb.GetTenantRequest, _context: Any) -> pb.GetTenantResponse:
        """Return a tenant with the amounts that it has spent on the current day and in the current
        month.
        """
        tenant, spent = await self._administration.tenant(request.name)
        return to_proto(pb.GetTenantResponse, tenant=tenant, spent=spent)

    async def ListTenants(
        self, request: pb.ListTenantsRequest, _context: Any
    ) -> pb.ListTenantsResponse:
        """Return a page of the tenants: first the tenant `default`, then the others by name."""
        page, token = _page(await self._administration.tenants(), "name", request)
        return to_proto(pb.ListTenantsResponse, tenants=page, next_page_token=token)

    async def UpdateTenant(
        self, request: pb.UpdateTenantRequest, _context: Any
    ) -> pb.UpdateTenantResponse:
        """Change settings of a tenant, or create the tenant if the request permits it, and return
        the tenant.
        """
        tenant, unpriced = await self._administration.update_tenant(
            request.tenant.name,
            _changes(request.tenant, request.update_mask.paths),
            create=request.allow_missing,
        )
        return to_proto(pb.UpdateTenantResponse, tenant=tenant, unpriced_models=unpriced)

    async def ListAuditEvents(
        self, request: pb.ListAuditEventsRequest, _context: Any
    ) -> pb.ListAuditEventsResponse:
        """Return a page of the audit log, newest event first."""
        try:
            before = min(abs(int(request.page_token or LAST_EVENT)), LAST_EVENT)
        except ValueError:
            raise BadRequest(_UNKNOWN) from None
        size = page_size(request.page_size, _PAGE)
        events = await self._administration.audit(size + 1, before)
        return pb.ListAuditEventsResponse(
            events=[to_proto(pb.AuditEvent, event, time=event.at) for event in events[:size]],
            next_page_token=str(events[size - 1].number) if len(events) > size else "",
        )


def _page(
    items: Sequence[Any],
    name: str,
    request: pb.ListKeysRequest | pb.ListTenantsRequest,
) -> tuple[Sequence[Any], str]:
    """Return the items of a page, and the token of the next page: the attribute `name` of the
    page's last item, or an empty text on the last page. Raises `BadRequest` for an unknown token.
    """
    start = 0
    if request.page_token:
        names = [getattr(item, name) for item in items]
        if request.page_token not in names:
            raise BadRequest(_UNKNOWN)
        start = names.index(request.page_token) + 1
    end = start + page_size(request.page_size, _PAGE)
    return items[start:end], getattr(items[end - 1], name) if end < len(items) else ""


def _key_to_proto(key: Key) -> pb.Key:
    return to_proto(pb.Key, key, scopes=sorted(key.scopes))


def _changes(
    message: pb.Tenant | pb.Key, names: Sequence[str], settings: Sequence[str] = SETTINGS
) -> dict[str, Any]:
    """Return the values of the settings `names` in a message, by name. A setting that the message
    does not contain has its default value. Raises `BadRequest` for a name that is not in
    `settings`.
    """
    tenant = from_proto(Tenant, message, name="")
    if unknown := [name for name in names if name not in settings]:
        raise BadRequest(
            f"update_mask: {unknown[0][:80]!r} is not a setting; use {', '.join(settings)}."
        )
    return {name: getattr(tenant, name) for name in names}
