"""From a config to a running gateway: that its keys reach the calls."""

from pathlib import Path

import grpc
import msgspec
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import usage_pb2
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub

from serving.composition import running_gateway
from serving.config import Config, RetrievalConfig, RoleConfig, RolesConfig, ServerConfig
from tests.router.openai_server import MODEL, serving


def ignored(_step: str) -> None:
    """Listen to nothing."""


async def test_a_role_s_keys_reach_its_calls(tmp_path: Path) -> None:
    """Thinking, further fields and the missing system role of a role show in what its model is sent."""
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    async with serving() as server:
        role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=server.base_url)
        changed = msgspec.structs.replace(role, thinking=False, extra_body={"top_k": 5}, system_role=False)
        config = Config(
            roles=RolesConfig(delegation=role, execution=role, answer=changed),
            retrieval=RetrievalConfig(address="127.0.0.1:9"),
            server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
        )
        async with (
            running_gateway(config, "127.0.0.1:0", ignored) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            for number in (usage_pb2.ROLE_ANSWER, usage_pb2.ROLE_DELEGATION):
                messages = [pb.ChatMessage(role=name, content=name) for name in ("system", "user")]
                request = pb.CompleteRequest(role=number, messages=messages)
                await CompletionServiceStub(channel).Complete(request, timeout=30)
    sent, unchanged = server.bodies
    assert sent["messages"] == [{"role": "user", "content": "system\n\nuser"}]
    assert (sent["top_k"], sent["chat_template_kwargs"]) == (5, {"enable_thinking": False})
    assert [message["role"] for message in unchanged["messages"]] == ["system", "user"]
    assert not {"top_k", "chat_template_kwargs"} & unchanged.keys()
