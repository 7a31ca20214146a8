"""Schema 8, the first with revisions. Databases that record no revision have this schema."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: new databases are created with the tables of the last revision."""
