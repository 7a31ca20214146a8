"""A journal that keeps nothing: the shipped double of `Journal`, for tests and for comparison."""

from router.amount import Amount
from router.call import Call, OpenedCall
from router.journal import Began, Earlier, RunStart
from router.run import Run


class NoJournal:
    """Agrees to everything."""

    async def begin(self, start: RunStart) -> Began | Earlier:
        """Any run may begin."""
        return Began()

    async def open(self, call: OpenedCall) -> None:
        """Any call may be made."""

    async def hold(self, run_id: str, amount: Amount) -> None:
        """Anything may be kept."""

    def settle(self, call: Call) -> None:
        """Keep nothing."""

    def discard(self, call: OpenedCall) -> None:
        """Keep nothing."""

    def forget(self, run_id: str) -> None:
        """Keep nothing."""

    async def finish(self, run: Run) -> None:
        """Keep nothing."""
