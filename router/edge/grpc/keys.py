"""Every call's key, and what it opens."""

from typing import Any

import grpc

from router.access import Access, check_scope
from router.edge.status import CALLER, behaviour_of, with_behaviour
from router.trace.identity import KeyScope

NEEDED: dict[str, KeyScope] = {
    "/rolegate.v1.AnswerService/Answer": "ask",
    "/rolegate.v1.AnswerService/StreamAnswer": "ask",
    "/rolegate.v1.CompletionService/Complete": "ask",
    "/rolegate.v1.CompletionService/StreamComplete": "ask",
    "/rolegate.v1.ExecutionService/Execute": "ask",
    "/rolegate.v1.ExecutorVersionService/ListExecutorVersions": "operate",
    "/rolegate.v1.ExecutorVersionService/RegisterExecutorVersion": "operate",
    "/rolegate.v1.ExecutorVersionService/SetExecutorVersionTraffic": "operate",
    "/rolegate.v1.ExecutorVersionService/PromoteExecutorVersion": "operate",
    "/rolegate.v1.ExecutorVersionService/RollBackExecutorVersion": "operate",
    "/rolegate.v1.ExecutorVersionService/ListExecutorVersionDecisions": "operate",
    "/rolegate.v1.RetrievalService/Search": "ask",
    "/rolegate.v1.RunService/GetRun": "ask",
    "/rolegate.v1.RunService/ListRuns": "ask",
    "/rolegate.v1.RunService/WatchRun": "ask",
    "/rolegate.v1.RunService/CancelRun": "ask",
    "/rolegate.v1.RunService/SubmitFeedback": "ask",
    "/rolegate.v1.RunService/ExportRuns": "train",
    "/rolegate.v1.UsageService/GetUsage": "ask",
    "/rolegate.v1.UsageService/ReconcileUsage": "operate",
}
"""The scope that each method needs (a test sees that none is missing); what is not `rolegate.v1` needs no key."""


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls in by their key, for as long as it is good, and tells their handlers who calls. It raises, so it
    stands inside of whoever translates errors, and around whoever writes streams.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler of the call."""
        handler, method = await continuation(handler_call_details), str(handler_call_details.method)
        if handler is None or not method.startswith("/rolegate.v1."):
            return handler
        authorization = str(dict(handler_call_details.invocation_metadata or ()).get("authorization", ""))

        async def admitted(request: Any, context: Any) -> Any:
            identity = await self._access.identify(authorization)
            # gRPC serves each call in a task of its own, so that this reaches its handler and no other.
            CALLER.set(identity)
            check_scope(identity, NEEDED[method])
            async with self._access.serving(identity):
                return await behaviour_of(handler)(request, context)

        return with_behaviour(handler, admitted)
