"""Warn when a tenant has spent 80 % of a quota: with an event in the log, a metric and a webhook.

Before a gateway sends a warning, it claims the warning in the database. So if several gateways
share the database, only one of them sends the warning. If the webhook cannot be delivered, a
gateway tries again after a pause, until the quota's day or month ends. The webhook follows Standard
Webhooks (https://www.standardwebhooks.com): receivers verify the signature, and ignore a
`webhook-id` that they have already received.
"""

import asyncio
import hashlib
import hmac
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import aiohttp
import msgspec
import structlog
from msgspec.structs import asdict

from router.access import QuotaUse
from router.errors import StoreFailed
from router.store import LogJournal

_log = structlog.get_logger("quotas")
_INTERVAL_S = 10.0
_AGAIN_S = 60.0
"""Seconds after which the delivery of a warning is tried again."""
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_WARN_PERCENT = 80
ShowQuotas = Callable[[Sequence[QuotaUse], Sequence[QuotaUse]], None]
"""Callback with two arguments: the use of all quotas, and the use of those quotas for which a
warning has just been sent for the first time.
"""


class Webhook(NamedTuple):
    """The receiver of warnings, and the key for signing them."""

    url: str
    key: bytes

    async def delivers(self, use: QuotaUse) -> bool:
        """Post a warning. Return True if the receiver accepts it; otherwise, log the reason."""
        now = time.time()
        content = {
            "type": "quota.warning",
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
            "data": asdict(use),
        }
        body = msgspec.json.encode(content)
        webhook_id = hashlib.sha256(repr(use.key).encode()).hexdigest()[:32]
        signed = f"{webhook_id}.{now:.0f}.".encode() + body
        signature = b64encode(hmac.digest(self.key, signed, "sha256")).decode()
        headers = {
            "Content-Type": "application/json",
            "webhook-id": webhook_id,
            "webhook-timestamp": f"{now:.0f}",
            "webhook-signature": f"v1,{signature}",
        }
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.post(
                    self.url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                problem = "" if 200 <= response.status < 300 else f"status {response.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            problem = type(error).__name__  # the message may contain the URL, which may be a secret
        if problem:
            _log.warning("quota.webhook_failed", error=problem, again_in_s=_AGAIN_S, **asdict(use))
        return not problem


async def watch_quotas(
    journal: LogJournal, webhook: Webhook | None, show: ShowQuotas | None
) -> None:
    """Check regularly how much of the quotas is spent, and send warnings. Runs until cancelled."""

    async def deliver(use: QuotaUse) -> None:
        if webhook is None or await webhook.delivers(use):
            await journal.accounts.delivered(use)

    while True:
        with suppress(StoreFailed):  # readiness reports the failure
            uses = await journal.quota_uses()
            nearly = [use for use in uses if use.used * 100 >= use.limit * _WARN_PERCENT]
            claimed_before = time.time() - _AGAIN_S
            due = await journal.accounts.claim_warnings(nearly, claimed_before) if nearly else []
            new = [use for use, is_new in due if is_new]
            for use in new:
                _log.warning("quota.warning", **asdict(use))
            if show:
                show(uses, new)
            await asyncio.gather(*(deliver(use) for use, _ in due))
        await asyncio.sleep(_INTERVAL_S)
