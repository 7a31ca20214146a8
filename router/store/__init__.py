"""Storage of runs, accounts, usage and versions, in SQLite or PostgreSQL."""

from router.store.accounts import SQLAccounts
from router.store.archive import SQLArchive
from router.store.database import Database
from router.store.follower import opened
from router.store.journal import LogJournal
from router.store.usage import SQLUsages
from router.store.versions import SQLVersionBook

__all__ = [
    "Database",
    "LogJournal",
    "SQLAccounts",
    "SQLArchive",
    "SQLUsages",
    "SQLVersionBook",
    "opened",
]
