"""Alembic's environment: run revisions in the transaction of the caller's connection."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
