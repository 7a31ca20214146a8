"""The gateway's image, built and started without a container runtime: `python -m tests.deploy.image
FOLDER`, as root, with Buildah and debootstrap.

The base is a minimal Debian 13 by debootstrap, and Buildah works in FOLDER, with the isolation
`chroot`. The container creates a key, starts as the image says, and answers a question with
simulated models. Prints the size of the image, and how long each step took.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from grpc import StatusCode
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.answer_service_pb2 import AnswerResponse

from benchmarks.gateway import canned_config, played
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
_PACKAGES = "python3,python3-venv,ca-certificates"
_CONFIG = "/etc/rolegate/rolegate.toml"
_CERTIFICATES = "/etc/ssl/certs"
_PACKAGE_LIST = "/opt/rolegate/share/rolegate/sbom.cdx.json"
_PATIENCE_S = 60.0
_USER = 10001


def buildah(folder: Path, *arguments: str | Path) -> list[str]:
    """Return a command of Buildah, which keeps everything in `folder`."""
    options = ("--storage-driver", "vfs", "--root", folder / "root", "--runroot", folder / "run")
    return ["buildah", *map(str, (*options, *arguments))]


def said(command: Sequence[str]) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-3000:]}"
    return done.stdout.strip()


def build_base(folder: Path) -> None:
    """Make the image `base`, a Debian with Python."""
    system = folder / "debian"
    said(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "trixie", str(system)])
    container = said(buildah(folder, "from", "scratch"))
    said(buildah(folder, "add", container, system, "/"))
    said(buildah(folder, "commit", container, "localhost/base"))


def build_image(folder: Path) -> str:
    """Build `deploy/Dockerfile`; return the image's size."""
    command = buildah(
        folder,
        *("bud", "--isolation", "chroot", "--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"),
        *("--build-arg", "BASE=localhost/base", "--tag", "rolegate"),
        *("--file", "deploy/Dockerfile", "."),
    )
    said(command)
    (image,) = json.loads(said(buildah(folder, "images", "--json", "localhost/rolegate")))
    return str(image["size"])


class Container:
    """A container of the image. Its user owns `/data` only."""

    def __init__(self, folder: Path, config: Path) -> None:
        data = folder / "data"
        data.mkdir(exist_ok=True)
        os.chown(data, _USER, _USER)
        name = said(buildah(folder, "from", "rolegate"))
        mounts = ("--volume", f"{config}:{_CONFIG}:ro", "--volume", f"{data}:/data")
        self._command = buildah(folder, "run", "--isolation", "chroot", *mounts, name, "--")

    def run(self, *words: str) -> str:
        """Run a program, and return its output."""
        return said([*self._command, *words])

    def serve(self) -> "subprocess.Popen[bytes]":
        """Start the gateway, as the image's own command does."""
        return subprocess.Popen([*self._command, "rolegate", "serve", "--config", _CONFIG])


async def answer(address: str, key: str) -> AnswerResponse:
    """Ask a question, as soon as the gateway is ready."""
    async with AsyncClient(address, api_key=key) as client, asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                return await client.ask("In which country is the birthplace?")
            except GatewayError as error:
                if error.code is not StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)


async def main(folder: Path) -> None:
    """Build, start and ask; print the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    if not said(buildah(folder, "images", "--quiet", "--filter", "reference=localhost/base")):
        build_base(folder)
    print(f"base: {time.monotonic() - begun:.0f} s")
    begun = time.monotonic()
    size = build_image(folder)
    print(f"image: {time.monotonic() - begun:.0f} s, {size}")
    async with played() as (models, retrieval):
        address = f"127.0.0.1:{free_port()}"
        server = {"address": address, "store": "sqlite:////data/runs.db"}
        config = canned_config(folder / "config", [models.base_url], retrieval, server=server)
        config.chmod(0o644)
        container = await asyncio.to_thread(Container, folder, config)
        print(await asyncio.to_thread(container.run, "rolegate", "--version"))
        packages = await asyncio.to_thread(container.run, "cat", _PACKAGE_LIST)
        print(f"packages in the list of the image: {len(json.loads(packages)['components'])}")
        create = ("rolegate", "keys", "create", "--config", _CONFIG, "--json")
        created = json.loads(await asyncio.to_thread(container.run, *create))
        begun = time.monotonic()
        gateway = container.serve()
        try:
            answered = await answer(address, created["key"])
            print(f"answered {answered.answer!r} {time.monotonic() - begun:.1f} s after the start")
        finally:
            # Buildah itself would be ended by the signal, and not pass it on
            served = psutil.Process(gateway.pid).children(recursive=True)[-1]
            served.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(gateway.wait, _PATIENCE_S)
    print(f"exit status after SIGTERM: {status}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
