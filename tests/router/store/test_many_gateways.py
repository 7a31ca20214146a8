"""The simulation of many gateways on one PostgreSQL, with few of them."""

import pytest

from router.testing.postgres import postgres_binaries, running_postgres
from tests.router.store.many_gateways import COLUMNS, allow_connections, measured


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.skipif(not postgres_binaries(), reason="PostgreSQL is not installed")
async def test_gateways_that_share_quotas_exceed_none() -> None:
    """Quotas are used up. On a busy machine, runs may fail, but no quota is exceeded."""
    with running_postgres(durable=False) as server:
        allow_connections(server, 80)
        line = await measured(server, 5, 2)
    figures = dict(
        zip(COLUMNS, (cell.strip() for cell in line.strip("| ").split("|")), strict=True)
    )
    assert int(figures["runs ended"]) + int(figures["failed"]) == 300
    assert figures["overshoot, tokens"] == "0"
    assert int(figures["refused"]) > 0
    assert float(figures["quota used"].rstrip("%")) > 80
