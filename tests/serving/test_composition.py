"""A config becomes a running gateway, and its keys reach the calls."""

import ast
import asyncio
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path

import aiohttp
import grpc
import msgspec
import pytest
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import executor_version_service_pb2 as versions_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1 import usage_service_pb2 as usage_service_pb
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from router.access import new_key
from router.edge.grpc.server import Server
from router.errors import BadConfig, StoreFailed
from router.store import Database, SQLAccounts, SQLVersionBook
from router.trace.identity import SCOPES
from router.versions import ExecutorVersion, VersionDecision
from serving import composition
from serving.composition import running_gateway
from serving.config.config import (
    Config,
    DistillationConfig,
    GateConfig,
    ReportCacheConfig,
    RetrievalConfig,
    RoleConfig,
    RolesConfig,
    ServerConfig,
    VersionsConfig,
)
from serving.retrieval.services import RetrievalServicer
from tests.openai_server import MODEL, fails, says, serving
from tests.router.deployment import PASSAGE, report
from tests.router.edge.wire import info_of
from tests.router.retriever import one_index
from tests.serving.tools.pools import faulty


def ignored(_step: str) -> None:
    """Ignore a line of the log."""


async def test_a_role_s_keys_reach_its_calls(tmp_path: Path) -> None:
    """Thinking, extra fields and the missing system role are in the requests to the model."""
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    async with serving() as server:
        role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=server.base_url)
        changed = msgspec.structs.replace(
            role, thinking=False, extra_body={"top_k": 5}, system_role=False
        )
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


async def test_all_pages_are_served_alongside_the_api(tmp_path: Path) -> None:
    """HTTP has an address in this config."""
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    lines: list[str] = []
    async with serving() as server:
        role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=server.base_url)
        config = Config(
            roles=RolesConfig(delegation=role, execution=role, answer=role),
            retrieval=RetrievalConfig(address="127.0.0.1:9"),
            server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
        )
        async with (
            running_gateway(config, "127.0.0.1:0", lines.append, "127.0.0.1:0") as address,
            grpc.aio.insecure_channel(address) as channel,
            aiohttp.ClientSession() as session,
        ):
            messages = [pb.ChatMessage(role="user", content="Who?")]
            request = pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=messages)
            await CompletionServiceStub(channel).Complete(request, timeout=30)
            place = lines[-1].removeprefix("pages are at ").removesuffix("/")
            for path, text in (
                ("/", "Who?</a>"),
                ("/usage", ">answer</th>"),
                ("/versions", f">{MODEL}</td>"),
                ("/v1/models", "rolegate-executor"),
            ):
                async with session.get(f"{place}{path}") as response:
                    assert response.status == 200
                    assert text in await response.text()


async def test_a_tool_server_that_is_down_does_not_stop_the_gateway(tmp_path: Path) -> None:
    """The gateway starts and is healthy; a working server ends with it."""
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    role = RoleConfig(
        model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url="http://127.0.0.1:9/v1"
    )
    config = Config(
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        retrieval=RetrievalConfig(address="127.0.0.1:9"),
        server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
        tools={"good": faulty(), "silent": faulty("silent"), "dead": faulty("dies")},
    )
    async with running_gateway(config, "127.0.0.1:0", ignored) as address:
        assert address


@pytest.mark.parametrize("setting", ["address", "http"])
async def test_a_port_in_use_is_reported_before_engines_load(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines take minutes to load."""
    monkeypatch.setattr("serving.composition.open_upstreams", NotImplemented)
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    async with serving() as server:
        role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=server.base_url)
        config = Config(
            roles=RolesConfig(delegation=role, execution=role, answer=role),
            retrieval=RetrievalConfig(address="127.0.0.1:9"),
            server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
        )
        address = server.base_url.split("/")[2]
        addresses = {"address": "127.0.0.1:0", "http": "127.0.0.1:0"} | {setting: address}
        with pytest.raises(
            BadConfig, match=f"^server.{setting}: cannot listen on {address}; is the port in use?"
        ):
            async with running_gateway(config, addresses["address"], ignored, addresses["http"]):
                pass


async def test_replicas_and_fallbacks_answer_for_a_failed_endpoint(tmp_path: Path) -> None:
    """With one endpoint dead and its replica overloaded, the backbone answers with its own length.

    The ledger's rows name the deployments, and each is reconciled separately.
    """
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    async with serving() as dead:
        """Its port is free again."""
    async with serving() as busy, serving() as backbone:
        busy.plays(fails(503, "loading", "60"))
        backbone.plays(says("from the backbone"))
        role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=backbone.base_url)
        executor = msgspec.structs.replace(
            role,
            base_url=dead.base_url,
            replicas=(busy.base_url,),
            fallbacks=("delegation",),
            attempts=2,
            max_tokens=7,
        )
        config = Config(
            roles=RolesConfig(delegation=role, execution=executor, answer=role),
            retrieval=RetrievalConfig(address="127.0.0.1:9"),
            server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
        )
        async with (
            running_gateway(config, "127.0.0.1:0", ignored) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            request = pb.CompleteRequest(
                role=usage_pb2.ROLE_EXECUTION, messages=[pb.ChatMessage(role="user", content="hi")]
            )
            reply = await CompletionServiceStub(channel).Complete(request, timeout=30)
            stub = UsageServiceStub(channel)
            response = await stub.ReconcileUsage(
                usage_service_pb.ReconcileUsageRequest(), timeout=30
            )
            run = await RunServiceStub(channel).GetRun(
                run_pb.GetRunRequest(run_id=reply.run_id), timeout=30
            )
    assert reply.text == "from the backbone"
    assert [body["max_tokens"] for body in backbone.bodies] == [role.max_tokens]
    assert [call.purpose for call in run.calls] == ["first", "retry", "fallback"]
    assert {call.deployment for call in run.calls[:2]} == {dead.base_url, busy.base_url}
    assert run.calls[2].deployment == backbone.base_url
    assert {reconciliation.deployment for reconciliation in response.reconciliations} == {
        server.base_url for server in (dead, busy, backbone)
    }


def versioned(tmp_path: Path, base_url: str, **versions: object) -> Config:
    """Return a config of one model with a folder of versions."""
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=base_url)
    return Config(
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        retrieval=RetrievalConfig(address="127.0.0.1:9"),
        server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
        versions=VersionsConfig(folder=f"{tmp_path}/versions", **versions),  # type: ignore[arg-type]
    )


async def test_an_unloadable_version_is_replaced_by_the_configured_model(tmp_path: Path) -> None:
    """The log says what is wrong."""
    lines: list[str] = []
    async with serving() as server:
        config = versioned(tmp_path, server.base_url)
        database = await Database.open(config.server.store)
        lost = ExecutorVersion("executor-000009", "registered", 0.0, 1.0, 1.0, "{}")
        noted = VersionDecision(lost.version, "registered", None, "registered", "operator", 1.0)
        await SQLVersionBook(database).add(lost, noted)
        active = msgspec.structs.replace(lost, state="active")
        assert await SQLVersionBook(database).change([lost], [active], [])
        await database.close()
        async with (
            running_gateway(config, "127.0.0.1:0", lines.append) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            request = pb.CompleteRequest(
                role=usage_pb2.ROLE_EXECUTION, messages=[pb.ChatMessage(role="user", content="?")]
            )
            assert (
                await CompletionServiceStub(channel).Complete(request, timeout=30)
            ).usage.model == MODEL
    (warning,) = [line for line in lines if "executor-000009" in line]
    assert warning.startswith(
        f"executor version executor-000009 is not in use here: {tmp_path}/versions/executor-000009"
    )


async def test_a_broken_first_version_stops_the_start(tmp_path: Path) -> None:
    """There is no gateway without the version, as the config asks for nothing else."""
    async with serving() as server:
        config = versioned(tmp_path, server.base_url, start=f"{tmp_path}/executor-000001")
        with pytest.raises(BadConfig, match=r"^versions\.start: .*manifest\.json: No such file"):
            async with running_gateway(config, "127.0.0.1:0", ignored):
                """It does not come to that."""


@pytest.mark.parametrize(
    "line", ["not JSON", '{"question": "Who?"}', '{"question": "Who?", "golden_answers": []}']
)
async def test_unreadable_held_out_questions_are_refused_at_the_start(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "held_out.jsonl").write_text(
        f'{{"question": "Who?", "golden_answers": ["I"], "id": 1}}\n{line}\n'
    )
    async with serving() as server:
        config = versioned(tmp_path, server.base_url, held_out=f"{tmp_path}/held_out.jsonl")
        with pytest.raises(
            BadConfig, match=r"^versions\.held_out: .* with `question` and `golden_answers`"
        ):
            async with running_gateway(config, "127.0.0.1:0", ignored):
                """It does not come to that."""


async def test_a_judge_and_its_key_are_required_for_a_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a gate they are not."""
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    async with serving() as server:
        config = versioned(tmp_path, server.base_url)
        judge = msgspec.structs.replace(config.roles.answer, api_key_env="JUDGE_KEY")
        config = msgspec.structs.replace(config, distillation=DistillationConfig(judge=judge))
        with pytest.raises(BadConfig, match=r"^distillation\.judge\.api_key_env"):
            async with running_gateway(config, "127.0.0.1:0", ignored):
                """It does not come to that."""
        versions = msgspec.structs.replace(config.versions, gate=GateConfig(enabled=False))
        async with running_gateway(
            msgspec.structs.replace(config, versions=versions), "127.0.0.1:0", ignored
        ):
            """Nobody asks the judge."""


def test_parts_are_complete_when_they_are_built() -> None:
    """The composition root sets no attribute of a built part, except a fresh breaker for a
    restarted engine.
    """
    tree = ast.parse(inspect.getsource(composition))
    targets = [
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    ]
    assert targets == ["breaker"]


async def test_the_configured_model_is_recorded_as_active(tmp_path: Path) -> None:
    """There is no other version."""
    async with serving() as server:
        config = versioned(tmp_path, server.base_url)
        async with (
            running_gateway(config, "127.0.0.1:0", ignored) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            request = versions_pb.ListExecutorVersionsRequest()
            (version,) = (
                await ExecutorVersionServiceStub(channel).ListExecutorVersions(request, timeout=30)
            ).versions
    assert (version.version, version.state) == (MODEL, versions_pb.EXECUTOR_VERSION_STATE_ACTIVE)


@pytest.mark.parametrize(
    ("execution", "report_cache", "calls"),
    [
        ({}, ReportCacheConfig(), 2),
        ({}, ReportCacheConfig(enabled=False), 6),
        ({"temperature": 0.7}, ReportCacheConfig(), 6),
        ({"temperature": 0.7, "seed": 1}, ReportCacheConfig(), 2),
    ],
)
async def test_a_repeated_sub_query_gets_its_cached_report(
    tmp_path: Path, execution: dict[str, float], report_cache: ReportCacheConfig, calls: int
) -> None:
    """There is no cache if it is switched off, or if the executor samples its answers.

    The index of a retrieval server is known from the start.
    """
    retrieval = Server(None, RetrievalServicer(one_index({"Heat": [PASSAGE]})))
    port = await retrieval.start("127.0.0.1:0")
    async with serving() as server:
        server.plays(
            *[
                says(text)
                for text in ("<search>Heat</search>", report("Mann", "Heat is by Mann.")) * 3
            ]
        )
        config = versioned(tmp_path, server.base_url)
        roles = msgspec.structs.replace(
            config.roles, execution=msgspec.structs.replace(config.roles.execution, **execution)
        )
        address = RetrievalConfig(address=f"127.0.0.1:{port}")
        config = msgspec.structs.replace(
            config, roles=roles, report_cache=report_cache, retrieval=address
        )
        async with (
            running_gateway(config, "127.0.0.1:0", ignored) as bound,
            grpc.aio.insecure_channel(bound) as channel,
        ):
            stub = ExecutionServiceStub(channel)
            first, second, third = [
                await stub.Execute(
                    execution_pb.ExecuteRequest(sub_query="Who directed Heat?"), timeout=30
                )
                for _ in range(3)
            ]
    await retrieval.drain(0)
    assert second.result.answer == third.result.answer == "Mann"
    assert list(second.result.shared_from) == ([first.run_id] if calls == 2 else [])
    assert len(server.bodies) == calls


def restore(file: Path) -> None:
    """Replace a file by a copy, as when a backup is restored."""
    copy = shutil.copy(file, file.with_name("copy"))
    Path(copy).replace(file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved": lambda file: file.rename(file.with_name("elsewhere")),
    "replaced": restore,
    "write-ahead log deleted": lambda file: file.with_name("runs.db-wal").unlink(),
    "folder moved": lambda file: file.parent.rename(file.parent.with_name("old")),
    "folder replaced": lambda file: shutil.copytree(
        file.parent.rename(file.parent.with_name("old")), file.parent
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_gateway_whose_store_is_removed_reads_nothing_from_it(
    damage: str, tmp_path: Path
) -> None:
    """If only the database is missing, runs continue, and a restarted gateway restores all of them
    from the log. If the log is missing too, runs soon fail.
    """
    (tmp_path / "prompt.txt").write_text("Answer.\n", "utf-8")
    file = tmp_path / "store" / "runs.db"
    file.parent.mkdir()
    request = pb.CompleteRequest(
        role=usage_pb2.ROLE_ANSWER, messages=[pb.ChatMessage(role="user", content="hi")]
    )
    async with serving() as server:
        role = RoleConfig(model=MODEL, prompt=f"{tmp_path}/prompt.txt", base_url=server.base_url)
        config = Config(
            roles=RolesConfig(delegation=role, execution=role, answer=role),
            retrieval=RetrievalConfig(address="127.0.0.1:9"),
            server=ServerConfig(store=f"sqlite:///{file}"),
        )
        async with (
            running_gateway(config, "127.0.0.1:0", ignored) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            completions = CompletionServiceStub(channel)
            runs = RunServiceStub(channel)
            answered = [(await completions.Complete(request, timeout=30)).run_id]
            assert (await runs.GetRun(run_pb.GetRunRequest(run_id=answered[0]), timeout=30)).output
            DAMAGES[damage](file)
            for call in (
                runs.SubmitFeedback(
                    run_pb.SubmitFeedbackRequest(run_id=answered[0], comment="good"), timeout=30
                ),
                runs.GetRun(run_pb.GetRunRequest(run_id=answered[0]), timeout=30),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert info_of(caught.value).reason == "STORE_FAILED"
                assert "was deleted or replaced while the gateway ran" in str(
                    caught.value.details()
                )
                assert "restart the gateway" in str(caught.value.details())
            if damage.startswith("folder"):
                answered = []
                with pytest.raises(grpc.aio.AioRpcError, match="was deleted or replaced") as caught:
                    async with asyncio.timeout(10):
                        while True:
                            await completions.Complete(request, timeout=30)
                assert info_of(caught.value).reason == "STORE_FAILED"
            else:
                answered += [
                    (await completions.Complete(request, timeout=30)).run_id for _ in range(3)
                ]
        file.parent.mkdir(exist_ok=True)
        async with (
            running_gateway(config, "127.0.0.1:0", ignored) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            answered.append(
                (await CompletionServiceStub(channel).Complete(request, timeout=30)).run_id
            )
            for run_id in answered:
                assert (
                    await RunServiceStub(channel).GetRun(
                        run_pb.GetRunRequest(run_id=run_id), timeout=30
                    )
                ).output


async def test_a_key_is_not_issued_into_a_removed_store(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    (tmp_path / "runs.db").unlink()
    with pytest.raises(StoreFailed, match="deleted or replaced"):
        await SQLAccounts(database).add_key(new_key(None, SCOPES)[1])
    assert not (tmp_path / "runs.db").exists()
    await database.close()
