"""Distribute the work of a command, such as embedding passages, over the nodes of a Ray cluster.
Workers are processes on the nodes.

The command gets the results and stores them itself, in the same way as without Ray. So the nodes
need not store anything. If a worker or its node dies, Ray starts another worker, and repeats the
calls that had not finished.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from router.errors import BadConfig, RolegateError

Ask = Callable[[Any], Awaitable[Any]]
"""Function that does the work for one item, such as a question, and returns the item's result."""


@cache
def workers_of(address: str, kind: type) -> Any:
    """Start a worker for each CPU of a Ray cluster, and return handles of the workers. The workers
    end when this process ends. Blocks for several seconds.

    To call a method of a worker, use `await finished(worker.method.remote(…))`; the arguments are
    pickled. `address`: HOST:PORT of the cluster's head node, or `local` to start a cluster on the
    cores of this machine. `kind`: class of the workers, created without arguments. Raises
    `BadConfig` if the cluster cannot be reached.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Otherwise, Ray prints the workers' output, and messages about dead workers, to stdout
    ray._private.worker._worker_logs_enabled = False
    try:
        if address != "local":  # Connect once before, because Ray itself tries for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 5).close()
        ray.init(address, include_dashboard=False, logging_level="ERROR")
    except Exception as error:  # Ray's errors have no common base class
        raise BadConfig(
            f"--ray {address}: the cluster cannot be reached ({error}); give `local`, or HOST:PORT "
            "of a head node that `ray start --head` has started. This machine must then be a node "
            "of its cluster (`ray start --address HOST:PORT`) with the same RAY_AUTH_MODE."
        ) from error
    worker = ray.remote(kind).options(
        max_restarts=3, max_task_retries=-1, scheduling_strategy="SPREAD"
    )
    return [worker.remote() for _ in range(int(ray.cluster_resources()["CPU"]))]


async def finished(call: Any) -> Any:
    """Wait for a call of a worker's method, and return the method's result. Raises the error that
    the method raised, and `RolegateError` if the worker died four times.
    """
    from ray.exceptions import RayActorError

    try:
        return await call
    except RayActorError as error:
        raise RolegateError(
            "--ray: a worker process died, and was restarted three times without success; check "
            "whether its node has enough memory, and read /tmp/ray/session_latest/logs there."
        ) from error
