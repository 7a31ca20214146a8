"""Add the audit log of administrative acts."""

from alembic import op

revision = "0002"
down_revision = "0001"
_AUDIT = """
CREATE TABLE audit (
    act VARCHAR NOT NULL, target VARCHAR NOT NULL, tenant VARCHAR, details_json VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL, door VARCHAR NOT NULL, address VARCHAR NOT NULL, at FLOAT NOT NULL,
    result VARCHAR NOT NULL, number BIGINT NOT NULL PRIMARY KEY
)
"""


def upgrade() -> None:
    """Create the table `audit`."""
    op.execute(_AUDIT)
