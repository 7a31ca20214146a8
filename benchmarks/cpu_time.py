"""Time that does not count what else the machine does."""

import time
from collections.abc import Callable


def cpu_s(work: Callable[[], object]) -> float:
    """Seconds of CPU that `work` takes in this thread."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun
