"""Bulk work on a Ray cluster. Workers are processes on the cluster's nodes.

Results are returned to the command, which stores them as it does without Ray. So nothing on the
cluster must survive. If a worker or its node dies, Ray starts another worker, and repeats the calls
that had not finished.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from router.errors import BadConfig, RolegateError

Ask = Callable[[Any], Awaitable[Any]]
"""Function that works on an item, and returns the result."""


@cache
def workers_of(address: str, kind: type) -> Any:
    """Start a worker for each CPU of a Ray cluster, and return the list of workers. They end with
    this process. Blocks for several seconds.

    To call a method of a worker, use `await finished(worker.method.remote(…))`; the arguments are
    pickled. `address`: HOST:PORT of the cluster's head, or `local` for a new cluster of this
    machine's cores. `kind`: class of the workers. Raises `BadConfig` if the cluster cannot be
    reached.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Otherwise, Ray prints the workers' output, and messages about dead workers, to stdout
    ray._private.worker._worker_logs_enabled = False
    try:
        if address != "local":  # check first, because Ray tries for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 5).close()
        ray.init(address, include_dashboard=False, logging_level="ERROR")
    except Exception as error:  # Ray raises many kinds
        raise BadConfig(
            f"--ray {address}: the cluster cannot be reached ({error}); give local, or HOST:PORT "
            "of a running head (`ray start --head`). For the latter, make this machine a node of "
            "that cluster (`ray start --address HOST:PORT`), and set RAY_AUTH_MODE as on the head."
        ) from error
    worker = ray.remote(kind).options(
        max_restarts=3, max_task_retries=-1, scheduling_strategy="SPREAD"
    )
    return [worker.remote() for _ in range(int(ray.cluster_resources()["CPU"]))]


async def finished(call: Any) -> Any:
    """Wait for a call of a worker, and return its result. Raises the error of the call, and
    `RolegateError` if the worker has died too often.
    """
    from ray.exceptions import RayActorError

    try:
        return await call
    except RayActorError as error:
        raise RolegateError(
            "--ray: a worker ended unexpectedly, and so did its three restarts; check the memory "
            "of the nodes, and session_latest/logs in Ray's folder there."
        ) from error
