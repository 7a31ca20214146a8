"""`rolegate sft publish`: publish a trained adapter or model as an immutable version.

The version is a folder with the next free name, such as executor-000001, in the config's
`versions.folder`. Its manifest records base model, recipe and data, and the SHA-256 of every file.
Afterwards, `rolegate versions register` makes the gateway check the version, load it into the
running engine and record it.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rolegate.client import Client
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from executor_sft.command import Count
from executor_sft.jsonl import read_json
from executor_sft.step import digest_of, read_manifest
from executor_sft.train import MODEL
from router.errors import BadConfig, BadVersion
from router.frozen import Frozen
from router.trace import RoleName
from serving.cli.command import POSITIONAL
from serving.config.config import Config
from serving.config.file import load_config
from serving.engines.versions import MANIFEST, VersionManifest, base_sha256, verified, write_version

_ADVICE = "name the evaluation.json of `rolegate sft evaluate`"


class Options(Frozen):
    """Options of `rolegate sft publish`."""

    config: Path
    trained: Annotated[Path, POSITIONAL]
    """result folder of `rolegate sft train`, or of `rolegate sft reinforce`"""
    evaluation: Path | None = None
    """file evaluation.json that `rolegate sft evaluate` wrote; it is stored in the version's
    manifest (default: no evaluation is stored)
    """
    step: Count | None = None
    """publish the adapter of this step of `rolegate sft reinforce` (default: the last step)"""


def run(options: Options) -> int:
    """Publish the version, print its folder and return the exit status."""
    version = publish(
        options.trained, load_config(options.config), options.evaluation, options.step
    )
    print(f"{version}: published")
    print(f"to register it with a running gateway: rolegate versions register {version.name}")
    return 0


def publish(
    trained: Path,
    config: Config,
    evaluation: Path | None = None,
    step: int | None = None,
) -> Path:
    """Write a new version, and return its folder. If a published version has the same files, write
    nothing, and return the folder of that version.

    `trained`: result folder of the training. `evaluation`: an `evaluation.json` to store in the
    manifest. `step`: for results of `rolegate sft reinforce`, the step whose adapter is published;
    None for the last step.

    Raises `BadVersion` if a trained file has changed or does not fit the executor's engine. Raises
    `BadConfig` if the training is not finished, or if `step` is given for another kind of training.
    """
    manifest = read_manifest(trained)
    figures = manifest.figures
    source = MODEL
    if manifest.origin.step == "reinforce":
        source = f"steps/{step or figures['steps']:04}/{figures['executor']}"
    elif step:
        raise BadConfig("--step: applies only to results of `sft reinforce`; leave it out.")
    files = {}
    for name, digest in manifest.files.items():
        if name.startswith(f"{source}/"):
            if digest_of(trained / name) != digest:
                raise BadVersion(
                    f"{trained / name}: changed after training; train again into another folder."
                )
            files[name.removeprefix(f"{source}/")] = digest
    if not files:
        raise BadVersion(
            f"{trained}: has no executor in {source}; pass an earlier --step, or another training."
        )
    recipe = manifest.origin.settings
    rank = None
    if figures["kind"] == "adapter":
        rank = figures.get("rank", recipe["rank"])
    check_engine(str(trained), config, figures["base_sha256"], rank)
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
        data=msgspec.to_builtins(manifest.steps.get("dataset", manifest)),
        evaluation=read_json(evaluation, dict[str, Any], _ADVICE) if evaluation else None,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        files={},
    )
    start = config.versions.start
    return write_version(folder, trained / source, version, [Path(start).name] if start else [])


def check_engine(
    what: str,
    config: Config,
    trained_on: str,
    rank: int | None,
    role: RoleName = "execution",
) -> None:
    """Raise `BadVersion` if the engine of `role` cannot serve a trained model, because it has
    another base model or accepts only adapters of a lower rank.

    `what`: name of the model or recipe, for the beginning of the error message. `trained_on`:
    SHA-256 of the base model that was trained. `rank`: rank of the adapter; None for whole weights.
    Nothing is checked if the role has a `base_url` instead of an engine that the gateway starts.
    """
    name = config.roles.by_name[role].engine
    if name is None:
        return
    engine = config.engines[name]
    served = base_sha256(Path(engine.path))
    if served and served != trained_on:
        raise BadVersion(
            f"{what}: the base model differs from the model that engines.{name} serves "
            f"({engine.path}); train on that model, or use a config that serves this base model."
        )
    if rank is not None and rank > (engine.adapter_rank or 0):
        raise BadVersion(
            f"{what}: the adapter has rank {rank}, and engines.{name} loads adapters up to rank "
            f"{engine.adapter_rank or 0}; set engines.{name}.adapter_rank to {rank} or more."
        )


def try_version(client: Client, folder: Path) -> None:
    """Register the version in `folder` with a gateway, and begin its trial on shadow traffic. If
    the gateway already knows the version and its state is not `registered`, nothing changes.

    Raises `BadVersion` if the gateway has another version of the same name, and `GatewayError` if
    the gateway cannot be reached or refuses.
    """
    name = folder.name
    versions = {version.version: version for version in client.versions()}
    known = versions.get(name) or client.register_version(name)
    if msgspec.json.decode(known.manifest_json, type=VersionManifest) != verified(folder):
        raise BadVersion(
            f"{folder}: the gateway has another version with this name; set versions.folder to the "
            "folder of versions that the gateway uses."
        )
    if known.state == ExecutorVersionState.EXECUTOR_VERSION_STATE_REGISTERED:
        client.set_version_traffic(name, "shadow")
    print(f"{name}: registered; `rolegate versions list` shows its results on shadow traffic")
