"""A prompt beyond the context of a real engine."""

import grpc
import pytest
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import usage_pb2
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub

from tests.end_to_end.conftest import Demo
from tests.router.edge.wire import info_of

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize("words", [3_000, 200_000])
async def test_a_prompt_that_is_too_long_is_a_typed_error(demo: Demo, words: int) -> None:
    """vLLM refuses by tokens, and by characters before it counts tokens; both are distinguished
    from other refusals.
    """
    message = pb.ChatMessage(role="user", content="city " * words)
    request = pb.CompleteRequest(role=usage_pb2.ROLE_DELEGATION, messages=[message])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CompletionServiceStub(demo.channel).Complete(request, timeout=60)
    assert info_of(caught.value).reason == "CONTEXT_TOO_LONG"
    assert "fewer or shorter passages" in (caught.value.details() or "")
