"""Add limits per minute of tenants and keys, and warnings that quotas are nearly spent."""

from itertools import product

from alembic import op

revision = "0005"
down_revision = "0004"
_WARNINGS = """
CREATE TABLE quota_warnings (
    tenant VARCHAR NOT NULL, quota VARCHAR NOT NULL, period VARCHAR NOT NULL,
    "limit" BIGINT NOT NULL, used BIGINT NOT NULL, tried_at FLOAT,
    PRIMARY KEY (tenant, quota, period, "limit")
)
"""


def upgrade() -> None:
    """Add the columns with limits (null for no limit), and the table `quota_warnings`."""
    for table, of in product(("tenants", "keys"), ("requests", "tokens")):
        op.execute(f"ALTER TABLE {table} ADD COLUMN {of}_per_minute BIGINT")
    op.execute(_WARNINGS)
