"""The wire side of single model calls."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import completion_service_pb2_grpc as pb_grpc

from router.edge.convert_request import completion_from_proto, terms_from_proto
from router.edge.convert_usage import usage_to_proto
from router.edge.running import Running
from router.execution import Conversation
from router.gateway import Gateway
from router.model import Completion, Delta
from router.run import Run

_PIECE_CHARS = 65536


class CompletionServicer(pb_grpc.CompletionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> pb.CompleteResponse:
        """Call the model of a role."""
        run = await self._gateway.complete(completion_from_proto(request), terms_from_proto(request, context))
        output = _output(run)
        return pb.CompleteResponse(
            text=output.text,
            reasoning=output.reasoning,
            finish_reason=output.finish_reason,
            usage=usage_to_proto(run.calls)[0],
            run_id=run.id,
        )

    async def StreamComplete(
        self, request: pb.StreamCompleteRequest, context: Any
    ) -> AsyncIterator[pb.StreamCompleteResponse]:
        """Call the model of a role and pass on what it writes."""
        asked, terms = completion_from_proto(request), terms_from_proto(request, context)
        told = False
        async with Running[Delta, Run](lambda tell: self._gateway.complete(asked, terms, tell), merged) as running:
            async for delta in running:
                if delta.text or delta.reasoning:
                    told = True
                    yield pb.StreamCompleteResponse(text=delta.text, reasoning=delta.reasoning)
            run = await running.result()
        output = _output(run)
        if not told and (output.text or output.reasoning):  # of an earlier request of the same name
            yield pb.StreamCompleteResponse(text=output.text, reasoning=output.reasoning)
        yield pb.StreamCompleteResponse(
            finish_reason=output.finish_reason, usage=usage_to_proto(run.calls)[0], run_id=run.id
        )


def merged(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """In pieces that go into a message each."""
    texts, reasonings, size = list[str](), list[str](), 0
    for delta in deltas:
        more = len(delta.text) + len(delta.reasoning)
        if size and size + more > _PIECE_CHARS:
            yield Delta("".join(texts), "".join(reasonings))
            texts, reasonings, size = [], [], 0
        texts.append(delta.text)
        reasonings.append(delta.reasoning)
        size += more
    yield Delta("".join(texts), "".join(reasonings))


def _output(run: Run) -> Completion:
    assert isinstance(run.result, Conversation)
    return run.result.outputs[-1]
