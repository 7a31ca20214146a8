"""Bulk work on a Ray cluster, by workers, which are processes on its nodes.

Results come back to the command that asked for them. It keeps them as it would without Ray, so the
cluster holds nothing that must survive. If a worker or its node dies, Ray starts another worker,
and makes the calls again that were open there.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from router.errors import BadConfig, RolegateError

Ask = Callable[[Any], Awaitable[Any]]
"""Function that works on one item."""


@cache
def workers_of(address: str, kind: type) -> Any:
    """Start a worker for each CPU of a Ray cluster, and return a list of them. They end with
    this process. Blocks for seconds.

    A method of a worker is called by `worker.method.remote(…)`, with arguments that can be pickled,
    and its result is obtained by `finished`. `address`: HOST:PORT of the cluster's head, or `local`
    for a new cluster of this machine's cores. `kind`: class of the workers. Raises `BadConfig` if
    the cluster cannot be reached.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Ray would print the workers' output, and which of them died, to standard output
    ray._private.worker._worker_logs_enabled = False
    try:
        if address != "local":  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 5).close()
        ray.init(address, include_dashboard=False, logging_level="ERROR")
    except Exception as error:  # Ray has many
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
    `RolegateError` if its worker has died too often.
    """
    from ray.exceptions import RayActorError

    try:
        return await call
    except RayActorError as error:
        raise RolegateError(
            "--ray: a worker ended unexpectedly, and so did its three restarts; check the memory "
            "of the nodes, and session_latest/logs in Ray's folder there."
        ) from error
