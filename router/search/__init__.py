"""The search of a run: the delegator, the executors and the answerer, and the loop that connects
them.
"""

from router.search.answerer import Answerer
from router.search.context import RunContext
from router.search.delegator import Delegator
from router.search.executor import Executor
from router.search.indexes import Indexes
from router.search.loop import FactorizedSearch, Topology
from router.search.report_cache import ReportCache

__all__ = [
    "Answerer",
    "Delegator",
    "Executor",
    "FactorizedSearch",
    "Indexes",
    "ReportCache",
    "RunContext",
    "Topology",
]
