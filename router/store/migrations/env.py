"""Alembic's entry: the migrations run in the transaction of whoever asks for them."""

from alembic import context

if __name__ == "env_py":  # as Alembic calls it; importing it does nothing
    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()
