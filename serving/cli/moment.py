"""Moments as they are typed."""

import re
from datetime import UTC, datetime, timedelta

from router.errors import BadConfig

FORMATS = "2026-11-21, 2026-11-21T10:00 (UTC, unless it names a zone), or 7d or 12h ago"


def moment(text: str) -> datetime:
    """A date, a time, or so many days (`7d`) or hours (`12h`) ago. Raises `BadConfig`."""
    try:
        if ago := re.fullmatch(r"(\d+)([dh])", text):
            number, unit = int(ago[1]), {"d": "days", "h": "hours"}[ago[2]]
            return datetime.now(UTC) - timedelta(**{unit: number})
        named = datetime.fromisoformat(text)
        return named.astimezone(UTC) if named.tzinfo else named.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadConfig(f"{text!r} is no time; write {FORMATS}.") from None
