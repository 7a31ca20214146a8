"""Versions of the executor, trials of them, and what was decided."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "executor_versions",
        sa.Column("version", sa.String, primary_key=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("share", sa.Float, nullable=False),
        sa.Column("state_at", sa.Float, nullable=False),
        sa.Column("registered_at", sa.Float, nullable=False),
        sa.Column("manifest", sa.String, nullable=False),
    )
    op.create_table(
        "version_trials",
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("candidate", sa.String, nullable=False),
        sa.Column("active", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("candidate_answer", sa.String, nullable=False),
        sa.Column("candidate_failed", sa.Boolean, nullable=False),
        sa.Column("candidate_tokens", sa.BigInteger, nullable=False),
        sa.Column("active_answer", sa.String, nullable=False),
        sa.Column("active_failed", sa.Boolean, nullable=False),
        sa.Column("active_tokens", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
        sa.Column("judged_at", sa.Float),
        sa.Column("candidate_right", sa.Boolean),
        sa.Column("active_right", sa.Boolean),
    )
    op.create_index("version_trials_by_candidate", "version_trials", ["candidate", "stage", "ended_at"])
    op.create_table(
        "version_decisions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.String, sa.ForeignKey("executor_versions.version"), nullable=False, index=True),
        sa.Column("decision", sa.String, nullable=False),
        sa.Column("from_state", sa.String),
        sa.Column("to_state", sa.String, nullable=False),
        sa.Column("decided_by", sa.String, nullable=False),
        sa.Column("decided_at", sa.Float, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("figures", sa.String),
    )
