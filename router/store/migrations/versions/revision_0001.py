"""Runs, their calls, and feedback."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("request", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False, index=True),
        sa.Column("duration_s", sa.Float, nullable=False),
        sa.Column("trace", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "calls",
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("endpoint", sa.String, nullable=False),
        sa.Column("purpose", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("sub_query", sa.Integer),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("cached_tokens", sa.Integer),
        sa.Column("completion_tokens", sa.Integer),
        sa.Column("reasoning_tokens", sa.Integer),
        sa.Column("lower_bound", sa.Integer, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("duration_s", sa.Float, nullable=False),
    )
    op.create_table(
        "feedback",
        sa.Column("feedback_id", sa.String, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
        sa.Column("given_at", sa.Float, nullable=False),
        sa.Column("accepted", sa.Boolean),
        sa.Column("score", sa.Float),
        sa.Column("gold_answer", sa.String, nullable=False),
        sa.Column("comment", sa.String, nullable=False),
    )
