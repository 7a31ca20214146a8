"""`rolegate sft publish`: make an immutable version of what was trained, and hand it to a running gateway.

The version (executor-000001, …) goes into the config's `versions.folder`, with a manifest that says what it was made of
and the SHA-256 of every file. With --address, the gateway there checks it, loads it into its running engine and puts it
on record; --traffic shadow then lets it work beside the active version. Without --address, nothing but the folder is
written, and `rolegate versions register` does the rest.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rolegate.client import Client
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from executor_sft.step import StepManifest, digest_of, read_manifest
from executor_sft.train import MODEL
from router.errors import BadConfig, BadVersion
from serving.cli.connection import add_certificates, with_client
from serving.cli.options import add_config, chosen_config, host_port
from serving.config.config import Config
from serving.engines.versions import MANIFEST, VersionManifest, base_sha256, verified, write_version


def main(arguments: Sequence[str]) -> int:
    """Publish, and register where that is asked for; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft publish", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trained", type=Path, metavar="TRAINED", help="the folder of `rolegate sft train`")
    add_config(parser)
    parser.add_argument("--evaluation", type=Path, metavar="FILE", help="evaluation.json of `rolegate sft evaluate`")
    parser.add_argument("--address", type=host_port, metavar="HOST:PORT", help="a running gateway, to take it in")
    parser.add_argument(
        "--traffic", choices=["none", "shadow"], default="none", help="what it does there (default: none)"
    )
    add_certificates(parser)
    given = parser.parse_args(arguments)
    config = chosen_config(given)
    version = publish(given.trained, config, given.evaluation)
    print(f"{version}: published")
    if given.address is None:
        print(f"to register it with a running gateway: rolegate versions register {version.name}")
        return 0
    return with_client(given, lambda client: _register(client, version, given))


def publish(trained: Path, config: Config, evaluation: Path | None = None) -> Path:
    """The folder of the new version, or of the one that holds the same files already.

    Raises `BadVersion` where what was trained is damaged, or does not fit the engine of the executor; `BadConfig` where
    it is not there.
    """
    manifest = read_manifest(trained)
    files = _files(trained, manifest)
    recipe, base = manifest.origin.settings, manifest.figures["base"]
    rank = recipe["rank"] if manifest.figures["kind"] == "adapter" else None
    check_engine(f"{trained}", config, base["sha256"], rank)
    folder = Path(config.versions.folder)
    if (same := _published(folder, files)) is not None:
        return same
    version = VersionManifest(
        version="",
        kind=manifest.figures["kind"],
        base_model=config.roles.execution.model,
        base_sha256=base["sha256"],
        rank=rank,
        recipe=recipe,
        data=manifest.figures["data"],
        evaluation=_read(evaluation) if evaluation else None,
        git_revision=manifest.figures["git_revision"],
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        files={},
    )
    start = config.versions.start
    return write_version(folder, trained / MODEL, version, [Path(start).name] if start else [])


def _read(evaluation: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(evaluation.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BadConfig(
            f"--evaluation {evaluation}: {error.strerror}; name the evaluation.json of `rolegate sft evaluate`."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{evaluation}: {error}; name the evaluation.json of `rolegate sft evaluate`.") from None


def _files(trained: Path, manifest: StepManifest) -> dict[str, str]:
    """The digests of the model's files by name, which they must still have."""
    files = {name: digest for name, digest in manifest.files.items() if name.startswith(f"{MODEL}/")}
    for name, digest in files.items():
        if digest_of(trained / name) != digest:
            raise BadVersion(f"{trained / name}: is not what was trained; train it again into another folder.")
    return {name.removeprefix(f"{MODEL}/"): digest for name, digest in files.items()}


def check_engine(what: str, config: Config, trained_on: str, rank: int | None) -> None:
    """An engine of ours must serve the model that was trained on, and take adapters of this rank; what others serve is
    not known. Raises `BadVersion`, naming `what`.
    """
    name = config.roles.execution.engine
    if name is None:
        return
    engine = config.engines[name]
    served = base_sha256(Path(engine.path))
    if served and served != trained_on:
        raise BadVersion(
            f"{what}: is trained on another model than engines.{name} serves ({engine.path}); name the config that "
            "serves it, or train on that one."
        )
    if rank is not None and rank > (engine.adapter_rank or 0):
        raise BadVersion(f"{what}: makes an adapter of rank {rank}; set engines.{name}.adapter_rank = {rank} or more.")


def _published(folder: Path, files: Mapping[str, str]) -> Path | None:
    """The version that these files were published as, when the command was interrupted later on."""
    for path in sorted(folder.glob(f"executor-*/{MANIFEST}")):
        with suppress(BadVersion):
            if verified(path.parent).files == files:
                return path.parent
    return None


def _register(client: Client, folder: Path, given: argparse.Namespace) -> int:
    """What the gate has decided on it meanwhile stays so."""
    name = folder.name
    known = next((one for one in client.versions() if one.version == name), None) or client.register_version(name)
    if msgspec.json.decode(known.manifest_json, type=VersionManifest) != verified(folder):
        raise BadVersion(
            f"{folder}: the gateway at {given.address} knows another version of that name, from another folder; give "
            "versions.folder the one that it has."
        )
    print(f"{name}: registered at {given.address}")
    if given.traffic == "shadow" and known.state == ExecutorVersionState.EXECUTOR_VERSION_STATE_REGISTERED:
        client.set_version_traffic(name, "shadow")
        print(f"{name}: works as shadow; `rolegate versions list` shows how it does")
    return 0
