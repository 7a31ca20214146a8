"""Published versions, checked and loaded into the engine of the execution role while it runs."""

import asyncio
from collections.abc import Callable, Container, Mapping
from pathlib import Path

import aiohttp
import msgspec
import structlog

from router.errors import BadConfig, BadVersion, UpstreamError, UpstreamUnavailable
from router.models.adapters import Adapters
from serving.config.config import Config
from serving.config.secrets import api_key
from serving.engines.versions import VersionManifest, base_sha256, verified

_log = structlog.get_logger("versions")
MOST_LOADED = 7
"""Versions that an engine has at a time."""


class Loading:
    """Loads versions by their names, and lets the engine forget the first of those that are not
    in use any more.
    """

    def __init__(
        self,
        config: Config,
        engines: Mapping[str, str],
        session: aiohttp.ClientSession,
        in_use: Callable[[], Container[str]] = frozenset,
    ) -> None:
        """`engines`: base URLs by engine name. `in_use`: returns the versions that must stay
        loaded.
        """
        self._role = config.roles.execution
        self._versions = config.versions
        engine = config.engines.get(self._role.engine or "")
        self._base = Path(engine.path) if engine and Path(engine.path).is_dir() else None
        self._base_sha256 = ""
        key = api_key(self._role.api_key_env)
        base_url = engines[self._role.engine] if self._role.engine else self._role.base_url
        urls = [base_url, *self._role.replicas] if base_url else []
        self._replicas = [Adapters(session, url, key) for url in urls]
        self._changing = asyncio.Lock()
        self._loaded: dict[str, None] = {}
        """From the one that was asked for longest ago."""
        self._in_use = in_use

    async def first(self) -> tuple[str, str] | None:
        """The version that is active until another one is promoted, loaded: its name and its
        manifest; None where that is the model itself. Raises `BadConfig`.
        """
        if self._versions.start is None:
            return None
        name = Path(self._versions.start).name
        try:
            return name, await self.load(name)
        except (BadVersion, UpstreamError) as error:
            raise BadConfig(f"versions.start: {error}") from error

    async def load(self, version: str) -> str:
        """Check a version and make the engine know it; its manifest, as JSON.

        Raises `BadVersion` where its files are not what its manifest says, or do not fit the
        engine, or the engine has no room for it, and `UpstreamUnavailable` where no replica can be
        reached.
        """
        if not self._replicas:
            raise BadVersion(
                f"{version}: the executor's model is a provider's, which loads no "
                "adapters; set roles.execution.engine."
            )
        folder = self._folder(version)
        manifest = await asyncio.to_thread(self._checked, folder)
        async with self._changing:
            await self._make_room(version)
            await self._load(version, folder)
            self._loaded.pop(version, None)
            self._loaded[version] = None
        return msgspec.json.encode(manifest).decode()

    async def _load(self, version: str, folder: Path) -> None:
        """Load it into all replicas. One that is away gets it later: it turns the version away
        once it is back.
        """
        loading = (adapters.load(version, folder) for adapters in self._replicas)
        failures = [
            end
            for end in await asyncio.gather(*loading, return_exceptions=True)
            if isinstance(end, Exception)
        ]
        for failure in failures:
            if not isinstance(failure, UpstreamUnavailable) or len(failures) == len(self._replicas):
                raise failure
            _log.warning("version.not_everywhere", version=version, error=str(failure))

    async def _make_room(self, version: str) -> None:
        # An engine of ours may serve several of our gateways; the adapters in others' engines are
        # not our business.
        there = await self._replicas[0].names() if self._role.engine else []
        others = [name for name in dict.fromkeys((*self._loaded, *there)) if name != version]
        in_use = self._in_use()
        while len(others) >= MOST_LOADED:
            idle = next((name for name in others if name not in in_use), None)
            if idle is None:
                raise BadVersion(
                    f"{version}: the engine has {MOST_LOADED} versions that runs are "
                    "working with; wait."
                )
            others.remove(idle)
            await asyncio.gather(*(adapters.unload(idle) for adapters in self._replicas))
            self._loaded.pop(idle, None)

    def _folder(self, version: str) -> Path:
        start = Path(self._versions.start or "")
        return start if start.name == version else Path(self._versions.folder) / version

    def _checked(self, folder: Path) -> VersionManifest:
        manifest = verified(folder)
        if manifest.kind == "weights":
            raise BadVersion(
                f"{folder}: holds whole weights, and an engine that runs loads adapters "
                "only; serve them as a model of "
                "their own, and name it in roles.execution.model."
            )
        if self._base is not None and not self._base_sha256:
            self._base_sha256 = base_sha256(self._base)
        theirs = (manifest.base_model, manifest.base_sha256)
        ours = (self._role.model, self._base_sha256)
        if theirs[0] != ours[0] or (theirs[1] != ours[1] and all((theirs[1], ours[1]))):
            raise BadVersion(
                f"{folder}: was trained on {_base(*theirs)}, and the engine serves "
                f"{_base(*ours)}; train it on that "
                "one, or serve the other as roles.execution.model."
            )
        return manifest


def _base(model: str, sha256: str) -> str:
    return f"{model} (SHA-256 {sha256})" if sha256 else model
