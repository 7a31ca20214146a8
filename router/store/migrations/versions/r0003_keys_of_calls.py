"""Add the key of each call, and sums by key."""

from alembic import op

revision = "0003"
down_revision = "0002"
_KEY = "ALTER TABLE calls ADD COLUMN key_id VARCHAR NOT NULL DEFAULT ''"
_SUMS = """
CREATE TABLE usage_key_hours (
    tenant VARCHAR NOT NULL, hour INTEGER NOT NULL, role VARCHAR NOT NULL, model VARCHAR NOT NULL,
    deployment VARCHAR NOT NULL, executor_version VARCHAR NOT NULL, manager VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL, attempts BIGINT NOT NULL, attempts_without_usage BIGINT NOT NULL,
    attempts_without_cost BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL, cached_tokens BIGINT, reasoning_tokens BIGINT,
    wasted_tokens BIGINT NOT NULL, nano_usd BIGINT,
    PRIMARY KEY (tenant, hour, role, model, deployment, executor_version, manager, key_id)
)
"""
_BEFORE = """
INSERT INTO usage_key_hours
SELECT tenant, hour, role, model, deployment, executor_version, manager, '', attempts,
    attempts_without_usage, attempts_without_cost, prompt_tokens, completion_tokens, cached_tokens,
    reasoning_tokens, wasted_tokens, nano_usd
FROM usage_hours
"""
_BY_TIME = "CREATE INDEX usage_key_hours_by_time ON usage_key_hours (hour)"


def upgrade() -> None:
    """Add `calls.key_id` and `usage_key_hours`."""
    for statement in (_KEY, _SUMS, _BEFORE, _BY_TIME):
        op.execute(statement)
