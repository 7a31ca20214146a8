"""A held-out mini world, asked over gRPC through real vLLM and real retrieval.

Beside the exact match of whole runs stand two ceilings: with the gold decomposition (executor and answerer do their
part), and with the gold reports (the answerer alone). What is lost between two columns is lost by one role.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import grpc
import msgspec
from msgspec import Meta
from rolegate.v1 import answer_service_pb2 as answer_pb

from benchmarks import harness
from benchmarks.harness import tell
from benchmarks.load import in_flight
from benchmarks.mini_client import MiniClient
from benchmarks.mini_report import MiniReport, report
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.world import World
from serving.composition import running_gateway
from serving.config.config import ReportCacheConfig
from serving.config.file import load_config, preset


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    seed: Annotated[int, Meta(description="of the world; its names are never trained on")] = 11
    questions: Annotated[int, Meta(ge=1, description="about it")] = 200
    models: Annotated[Path, Meta(description="a config with other models than the preset mini's")] | None = (
        msgspec.field(name="config", default=None)
    )
    outside: Annotated[Path, Meta(description="a questions.jsonl from another world")] | None = None
    outside_questions: Annotated[int, Meta(ge=1, description="of that")] = 100
    in_flight: Annotated[int, Meta(ge=1, description="questions at once")] = 8


class _Outside(msgspec.Struct, frozen=True):
    question: str


async def measure(options: Options) -> MiniReport:
    """Ask all questions in all ways."""
    with tempfile.TemporaryDirectory() as folder:
        questions = export(World(options.seed, "test"), Path(folder), options.questions)
        config = over(load_config(options.models or preset("mini")), Path(folder))
        config = msgspec.structs.replace(config, report_cache=ReportCacheConfig(enabled=False))
        async with (
            running_gateway(config, "127.0.0.1:0", tell) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            client = MiniClient(channel, Path(config.roles.answer.prompt).read_text("utf-8").strip())
            asked = await in_flight(client.ask, questions, options.in_flight)
            return report(options.seed, asked, await _confident_outside(options, client))


async def _confident_outside(options: Options, client: MiniClient) -> list[str] | None:
    """The questions of another world that got an answer nevertheless; None where none were asked."""
    if options.outside is None:
        return None
    lines = options.outside.read_text("utf-8").splitlines()[: options.outside_questions]
    questions = [msgspec.json.decode(line, type=_Outside).question for line in lines]
    answers = await in_flight(client.answer, questions, options.in_flight, "asking from outside")
    refused = (answer_pb.ANSWER_OUTCOME_OUT_OF_SCOPE, answer_pb.ANSWER_OUTCOME_NOT_FOUND)
    return [question for question, answer in zip(questions, answers, strict=True) if answer.outcome not in refused]
