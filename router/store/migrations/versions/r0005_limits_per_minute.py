"""Add limits per minute of tenants and keys."""

from itertools import product

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns, which are null for no limit."""
    for table, of in product(("tenants", "keys"), ("requests", "tokens")):
        op.execute(f"ALTER TABLE {table} ADD COLUMN {of}_per_minute BIGINT")
