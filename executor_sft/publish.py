"""`rolegate sft publish`: make an immutable version of what was trained, and hand it to a running
gateway.

The version (executor-000001, …) goes into the config's `versions.folder`, with a manifest that says
what it was made of and the SHA-256 of every file. With --address, the gateway there checks it,
loads it into its running engine and puts it on record; --traffic shadow then lets it work beside
the active version. Without --address, nothing but the folder is written, and `rolegate versions
register` does the rest. With --push, any running vLLM or SGLang loads the adapter.
"""

import argparse
import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from rolegate.client import Client
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from executor_sft.command import POSITIONAL
from executor_sft.jsonl import read_json
from executor_sft.step import digest_of, read_manifest
from executor_sft.train import MODEL
from router.errors import BadVersion
from router.models.adapters import Adapters
from router.models.session import upstream_session
from serving.cli.options import with_client
from serving.config.config import Config
from serving.config.file import load_config
from serving.engines.versions import MANIFEST, VersionManifest, base_sha256, verified, write_version

_ADVICE = "name the evaluation.json of `rolegate sft evaluate`"


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that lead to a running gateway; the key is that of the environment variable
    ROLEGATE_API_KEY.
    """

    config: Path
    address: (
        Annotated[str, Meta(description="HOST:PORT of a running gateway, to take it in")] | None
    ) = None
    ca: (
        Annotated[Path, Meta(description="encrypt; who signed the gateway's certificate (PEM)")]
        | None
    ) = None
    certificate: (
        Annotated[Path, Meta(description="your own, where the gateway wants one (PEM)")] | None
    ) = None
    key: Annotated[Path, Meta(description="that belongs to --certificate (PEM)")] | None = None


class Options(GatewayOptions, frozen=True, kw_only=True):
    """Options of the command."""

    trained: Annotated[Path, POSITIONAL, Meta(description="the folder of `rolegate sft train`")]
    evaluation: (
        Annotated[Path, Meta(description="evaluation.json of `rolegate sft evaluate`")] | None
    ) = None
    push: (
        Annotated[
            str, Meta(description="base URL of a vLLM or SGLang that is to load it, as http://…/v1")
        ]
        | None
    ) = None
    traffic: Annotated[Literal["none", "shadow"], Meta(description="work that it gets there")] = (
        "none"
    )


def run(options: Options) -> int:
    """Publish, and register where that is asked for; the exit status."""
    version = publish(options.trained, load_config(options.config), options.evaluation)
    print(f"{version}: published")
    if options.push is not None:
        asyncio.run(_push(version, options.push))
        print(
            f"{version.name}: loaded at {options.push}; ask for model {version.name}, of "
            f"SGLang for BASE:{version.name}"
        )
    if options.address is None:
        print(f"to register it with a running gateway: rolegate versions register {version.name}")
        return 0
    given = argparse.Namespace(**msgspec.structs.asdict(options))
    return with_client(given, lambda client: _register(client, version, options))


def publish(trained: Path, config: Config, evaluation: Path | None = None) -> Path:
    """The folder of the new version, or of the one that holds the same files already: where the
    command was interrupted later on.

    Raises `BadVersion` where what was trained is damaged, or does not fit the engine of the
    executor; `BadConfig` where it is not there.
    """
    manifest = read_manifest(trained)
    files = {}
    for name, digest in manifest.files.items():
        if name.startswith(f"{MODEL}/"):
            if digest_of(trained / name) != digest:
                raise BadVersion(
                    f"{trained / name}: is not what was trained; train it again into "
                    "another folder."
                )
            files[name.removeprefix(f"{MODEL}/")] = digest
    recipe = manifest.origin.settings
    figures = manifest.figures
    rank = recipe["rank"] if figures["kind"] == "adapter" else None
    check_engine(f"{trained}", config, figures["base_sha256"], rank)
    folder = Path(config.versions.folder)
    for path in sorted(folder.glob(f"executor-*/{MANIFEST}")):
        with suppress(BadVersion):
            if verified(path.parent).files == files:
                return path.parent
    version = VersionManifest(
        version="",
        kind=figures["kind"],
        base_model=config.roles.execution.model,
        base_sha256=figures["base_sha256"],
        rank=rank,
        recipe=recipe,
        data=msgspec.to_builtins(manifest.steps["dataset"]),
        evaluation=read_json(evaluation, dict[str, Any], _ADVICE) if evaluation else None,
        git_revision=figures["git_revision"],
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        files={},
    )
    start = config.versions.start
    return write_version(folder, trained / MODEL, version, [Path(start).name] if start else [])


def check_engine(what: str, config: Config, trained_on: str, rank: int | None) -> None:
    """Raise `BadVersion`, naming `what`, where an engine of ours serves another model than the one
    that was trained on (its SHA-256), or takes no adapters of this rank; other engines' models are
    not known.
    """
    name = config.roles.execution.engine
    if name is None:
        return
    engine = config.engines[name]
    served = base_sha256(Path(engine.path))
    if served and served != trained_on:
        raise BadVersion(
            f"{what}: is trained on another model than engines.{name} serves "
            f"({engine.path}); name the config that "
            "serves it, or train on that one."
        )
    if rank is not None and rank > (engine.adapter_rank or 0):
        raise BadVersion(
            f"{what}: makes an adapter of rank {rank}; set engines.{name}.adapter_rank = "
            f"{rank} or more."
        )


async def _push(folder: Path, base_url: str) -> None:
    """Load an adapter into a running engine, which sees the same folder. Raises `BadVersion`,
    `UpstreamUnavailable`.
    """
    async with upstream_session() as session:
        await Adapters(session, base_url).load(folder.name, folder.resolve())


def _register(client: Client, folder: Path, options: Options) -> int:
    """Register the version, and give it traffic unless the gateway's gate has decided on it
    before.
    """
    name = folder.name
    known = next(
        (one for one in client.versions() if one.version == name), None
    ) or client.register_version(name)
    if msgspec.json.decode(known.manifest_json, type=VersionManifest) != verified(folder):
        raise BadVersion(
            f"{folder}: the gateway at {options.address} knows another version of that "
            "name, from another folder; give "
            "versions.folder the one that it has."
        )
    print(f"{name}: registered at {options.address}")
    if (
        options.traffic == "shadow"
        and known.state == ExecutorVersionState.EXECUTOR_VERSION_STATE_REGISTERED
    ):
        client.set_version_traffic(name, "shadow")
        print(f"{name}: works as shadow; `rolegate versions list` shows how it does")
    return 0
