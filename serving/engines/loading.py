"""Load versions of the executor into its running engine. A version is a published LoRA adapter."""

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
MAX_LOADED = 7
"""Max number of versions in an engine at a time."""


class Loading:
    """Loads versions of the executor into its engine, by name. If the engine is full, the least
    recently loaded version that is not in use is unloaded first.
    """

    def __init__(
        self,
        config: Config,
        engines: Mapping[str, str],
        session: aiohttp.ClientSession,
        in_use: Callable[[], Container[str]] = frozenset,
    ) -> None:
        """`engines`: base URLs by engine name. `in_use`: returns the versions that must not be
        unloaded.
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
        self._loaded = dict[str, None]()
        """The loaded versions as keys, the least recently loaded version first."""
        self._in_use = in_use

    async def first(self) -> tuple[str, str] | None:
        """Load the version that `versions.start` names, and return its name and its manifest as
        JSON. Return None if this key of the config is not set. Raises `BadConfig` if the version
        cannot be loaded.
        """
        if self._versions.start is None:
            return None
        name = Path(self._versions.start).name
        try:
            return name, await self.load(name)
        except (BadVersion, UpstreamError) as error:
            raise BadConfig(f"versions.start: {error}") from error

    async def load(self, version: str) -> str:
        """Check a version, load it in all replicas of the engine, and return its manifest as JSON.

        Raises `BadVersion` if the files do not match the manifest, if the version was trained on
        another model than the engine serves, or if the engine is full and all its versions are in
        use. Raises `UpstreamUnavailable` if no replica can be reached.
        """
        if not self._replicas:
            raise BadVersion(
                f"{version}: the executor's model is called through LiteLLM, which loads no "
                "adapters; set roles.execution.engine."
            )
        folder = self._folder(version)
        manifest = await asyncio.to_thread(self._checked, folder)
        async with self._changing:
            await self._make_room(version)
            loading = (adapters.load(version, folder) for adapters in self._replicas)
            results = await asyncio.gather(*loading, return_exceptions=True)
            failures = [result for result in results if isinstance(result, Exception)]
            # If a replica is unreachable, the version is loaded into it later, when the replica
            # refuses a call for that version
            for failure in failures:
                unreachable = isinstance(failure, UpstreamUnavailable)
                if not unreachable or len(failures) == len(self._replicas):
                    raise failure
                _log.warning("version.not_everywhere", version=version, error=str(failure))
            self._loaded.pop(version, None)
            self._loaded[version] = None
        return msgspec.json.encode(manifest).decode()

    async def _make_room(self, version: str) -> None:
        """Unload versions until the engine has a free slot. Raises `BadVersion` if all versions in
        the engine are in use.
        """
        # In an engine that the gateway started, all adapters are versions of the executor, and each
        # may be unloaded. A server at `base_url` may also have adapters of other users, so only
        # versions that this gateway has loaded are unloaded.
        in_engine = await self._replicas[0].names() if self._role.engine else []
        others = [name for name in dict.fromkeys((*self._loaded, *in_engine)) if name != version]
        in_use = self._in_use()
        while len(others) >= MAX_LOADED:
            idle = next((name for name in others if name not in in_use), None)
            if idle is None:
                raise BadVersion(
                    f"{version}: was not loaded, because the engine holds at most {MAX_LOADED} "
                    "versions, and runs use all of them; try again when some runs have ended."
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
                f"{folder}: contains full weights, and a running engine loads only adapters; serve "
                "them as a separate model, and name it in roles.execution.model."
            )
        if self._base is not None and not self._base_sha256:
            self._base_sha256 = base_sha256(self._base)
        trained_on = manifest.base_sha256
        served = self._base_sha256
        is_other = trained_on != served and trained_on and served
        if manifest.base_model != self._role.model or is_other:
            raise BadVersion(
                f"{folder}: was trained on {_base(manifest.base_model, trained_on)}, and the "
                f"engine serves {_base(self._role.model, served)}; train the version on the "
                "engine's model, or set roles.execution.model to the model that it was trained on."
            )
        return manifest


def _base(model: str, sha256: str) -> str:
    """Return the name of a base model for a message, with the SHA-256 of its weights if known."""
    return f"{model} (SHA-256 {sha256})" if sha256 else model
