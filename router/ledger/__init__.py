"""One row for each attempt of each call; budgets, usage, reconciliation."""

from router.ledger.budget import Budget
from router.ledger.journal import Journal, RunStart
from router.ledger.ledger import Ledger
from router.ledger.reconciliation import Reconciler
from router.ledger.usage import UsageQuery, UsageReport

__all__ = ["Budget", "Journal", "Ledger", "Reconciler", "RunStart", "UsageQuery", "UsageReport"]
