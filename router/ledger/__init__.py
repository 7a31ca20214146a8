"""The ledger, which has one row for each attempt of each model call. Also budgets, sums of usage,
and reconciliation with the engines' own counters.
"""

from router.ledger.budget import Budget
from router.ledger.journal import Journal, RunStart
from router.ledger.ledger import Ledger
from router.ledger.reconciliation import Reconciler
from router.ledger.usage import UsageQuery, UsageReport

__all__ = ["Budget", "Journal", "Ledger", "Reconciler", "RunStart", "UsageQuery", "UsageReport"]
