"""Store the documents that tenants upload, and build an index of them for each tenant in a
background task.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from router.background import Worker, background_tasks, errors_logged
from router.errors import BadConfig, BadIndex, BadRequest, NoText
from router.trace.scope import uploads_of
from router.uploads import Build, BuildState, UploadedDocument
from serving.config.config import Config
from serving.documents.document import escaped
from serving.documents.source import FoundFiles, SourceFile
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Embedder
from serving.retrieval.manifest import READING, build_lock, manifest_at
from serving.retrieval.opening import Check, stoppable
from serving.retrieval.passages import DocumentEntry
from serving.uploads.folder import BuildRecord, TenantFolder, checked_name
from serving.uploads.index import UploadsIndex

T = TypeVar("T")
_FOLLOW_S = 1.0
_RETRY_S = 60.0
"""Seconds before a failed build is tried again."""
_WAIT_S = 0.2
_log = structlog.get_logger("uploads")


class StoredUploads:
    """Implementation of `Uploads`, with a folder for each tenant.

    Each change of a tenant's documents puts the tenant into a queue. A background task builds the
    indexes of the tenants in the queue, one at a time. A build covers all changes before its start.
    When the gateway starts, tenants whose index is not up to date are put into the queue.
    """

    def __init__(self, config: Config, embedder: Embedder) -> None:
        """`config`: the gateway's config, in which `uploads.folder` must be set."""
        self._config = config.uploads
        self._retrieval = config.retrieval
        self._embedder = embedder
        self._settings = (
            f"{READING} {embedder.identity} {embedder.dimension} "
            f"{config.retrieval.chunk_tokens} {config.retrieval.lexical}"
        )
        self._disk = Worker("uploads")
        self._arriving = Counter[str]()
        """Bytes of incomplete uploads (their announced sizes), by tenant."""
        self._indexes = dict[str, UploadsIndex]()
        self._due = asyncio.Queue[str]()
        self._waiting = set[str]()
        """Tenants in the queue `_due`."""
        self._built: str | None = None
        """Tenant whose index is being built; None if no build is running."""
        self._failures = dict[str, Exception]()
        """Error of the last build, by tenant. Tenants whose last build succeeded have no entry."""

    async def start(self) -> None:
        """Remove leftovers of killed gateways, and queue a build for each tenant whose index is not
        up to date. Raises `BadConfig` if the folder cannot be used.
        """
        for tenant in await self._disk(self._not_built):
            self._changed(tenant)

    def _not_built(self) -> list[str]:
        """Remove leftovers of killed gateways, and return the tenants whose index is not up to
        date. Blocks.
        """
        try:
            folders = TenantFolder.all(self._config)
        except OSError as error:
            raise BadConfig(
                f"uploads.folder: cannot be used ({error.strerror}: {error.filename}); name "
                "another folder, or allow the gateway to read and write it."
            ) from None
        for folder in folders:
            folder.remove_leftovers()
        return [folder.tenant for folder in folders if not self._last_build(folder).up_to_date]

    def _folder(self, tenant: str) -> TenantFolder:
        return TenantFolder(self._config, tenant)

    def index(self, tenant: str) -> UploadsIndex:
        """Return the retriever of a tenant's uploads."""
        if tenant not in self._indexes:
            folder = self._folder(tenant).index
            self._indexes[tenant] = UploadsIndex(uploads_of(tenant), folder, self._embedder)
        return self._indexes[tenant]

    async def upload(
        self,
        tenant: str,
        name: str,
        size: int,
        content: AsyncIterator[bytes],
        *,
        wait: bool = False,
    ) -> UploadedDocument:
        """Store a document, as `Uploads.upload` specifies."""
        name = checked_name(name)
        folder = self._folder(tenant)
        used = await self._disk(folder.used_without, name)
        folder.check_size(name, size, used + self._arriving[tenant])
        self._arriving[tenant] += size
        received = 0
        # `begin` runs in a task that is shielded below. So if the upload is cancelled meanwhile,
        # `discard` still gets the file, and removes it.
        begun = asyncio.create_task(self._disk(folder.begin))

        async def discard() -> None:
            await self._disk(folder.discard, await begun)

        try:
            file = await asyncio.shield(begun)
            async for piece in content:
                received += len(piece)
                if received > size:
                    break
                await self._disk(folder.write, file, piece)
            if received != size:  # a broken connection looks like the end of a stream
                raise BadRequest(
                    f"{name!r} was not stored: size_bytes is {size}, but {received} bytes were "
                    "received; upload the document again, with its exact size."
                )
            source = await self._change(tenant, folder.commit, file, name)
        finally:
            self._arriving[tenant] -= size
            await asyncio.shield(discard())

        document = _described(source)
        while wait and document.state == "waiting":
            await asyncio.sleep(_WAIT_S)
            build = await self.build(tenant)
            document = next((other for other in build.documents if other.name == name), document)
            wait = build.state == "building"
        return document

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a document, as `Uploads.delete` specifies."""
        await self._change(tenant, self._folder(tenant).delete, checked_name(name))

    async def build(self, tenant: str) -> Build:
        """Return the state of a tenant's index and its documents, as `Uploads.build` specifies."""
        is_due = tenant in self._waiting or tenant == self._built
        build = await self._disk(self._last_build, self._folder(tenant))
        # Refresh after reading the record, so that searches find all that the record says
        if await self._disk(self.index(tenant).is_stale):
            with suppress(BadIndex):  # a newer build has removed this generation
                await self.index(tenant).refresh()
        if build.up_to_date:
            return build
        error = self._failures.get(tenant)
        state: BuildState = "failed" if error else "idle"
        return replace(build, state="building" if is_due else state, error=error)

    def _last_build(self, folder: TenantFolder) -> Build:
        """Return the state of a tenant's index according to the files on disk. Blocks."""
        record = folder.record()
        manifest = manifest_at(folder.index)
        documents = folder.documents()
        entries = {entry.source: entry for entry in record.entries}
        up_to_date = (
            list(entries) == documents
            and record.generation == (manifest.generation if manifest else "")
            and (record.settings == self._settings or not documents)
        )
        return Build(
            "idle",
            [_described(source, entries.get(source)) for source in documents],
            up_to_date,
            indexed=sum(not entry.error for entry in record.entries),
            passages=sum(entry.passages for entry in record.entries),
            started_at=record.started_at,
            ended_at=record.ended_at,
        )

    async def work(self) -> None:
        """Build the indexes of the tenants in the queue. Never returns."""
        while True:
            self._built = await self._due.get()
            self._waiting.discard(self._built)
            try:
                await stoppable(partial(self._build, self._built))
                await self.index(self._built).refresh()
                self._failures.pop(self._built, None)
            except Exception as error:
                self._failures[self._built] = error
                asyncio.get_running_loop().call_later(_RETRY_S, self._changed, self._built)
                with errors_logged(_log, "uploads.build_failed", tenant=self._built):
                    raise
            self._built = None

    async def follow(self) -> None:
        """Make searches use the generations that other gateways have built. Never returns."""
        while True:
            await asyncio.sleep(_FOLLOW_S)
            for index in await self._disk(self._stale):
                with errors_logged(_log, "uploads.not_swapped"):
                    await index.refresh()

    async def _change(self, tenant: str, change: Callable[..., T], *arguments: Any) -> T:
        """Call `change(*arguments)`, which changes documents, and queue a build. Return the result
        of `change`. Both steps are done even if the caller is cancelled meanwhile.
        """

        async def changed() -> T:
            result = await self._disk(change, *arguments)
            self._changed(tenant)
            return result

        return await asyncio.shield(asyncio.create_task(changed()))

    def _changed(self, tenant: str) -> None:
        """Put a tenant into the queue for a build of its index, unless the tenant is already in the
        queue.
        """
        if tenant not in self._waiting:
            self._waiting.add(tenant)
            self._due.put_nowait(tenant)

    def _build(self, tenant: str, check: Check) -> None:
        """Build a tenant's index, and store the record of the build. A document that the last build
        could not read is not read again, unless the document or the settings of the build have
        changed. Blocks.
        """
        folder = self._folder(tenant)
        with build_lock(folder.path, wait=True, waiting=check):
            started_at = time.time()
            documents = folder.documents()
            before = folder.record()
            known = before.entries if before.settings == self._settings else ()
            entries = {entry.source: entry for entry in known if entry.error}
            sources = tuple(source for source in documents if source not in entries)
            generation = ""
            try:
                built = build_index(
                    FoundFiles(sources, (), ()),
                    folder.index,
                    self._embedder,
                    lexical=self._retrieval.lexical,
                    chunk_tokens=self._retrieval.chunk_tokens,
                    progress=lambda *_: check(),
                )
                generation = built.manifest.generation
                entries |= {entry.source: entry for entry in built.entries}
            except NoText as error:
                for source in sources:
                    entries[source] = DocumentEntry(source, 0, 0, error.reasons[source.path])
            folder.finish(
                BuildRecord(
                    self._settings,
                    generation,
                    started_at,
                    time.time(),
                    tuple(entries[source] for source in documents),
                )
            )

    def _stale(self) -> list[UploadsIndex]:
        return [index for index in list(self._indexes.values()) if index.is_stale()]

    async def close(self) -> None:
        """End the threads that search."""
        for index in self._indexes.values():
            await index.close()


@asynccontextmanager
async def opened_uploads(
    config: Config, embedder: Embedder | None
) -> AsyncIterator[StoredUploads | None]:
    """Yield the store for uploads that a config describes, and build the tenants' indexes in the
    background while the context is open. Yield None if the config has no folder for uploads, or if
    there is no embedder. Raises `BadConfig` if the folder cannot be used.
    """
    if config.uploads.folder is None or embedder is None:
        yield None
        return
    uploads = StoredUploads(config, embedder)
    await uploads.start()
    try:
        async with background_tasks(uploads.work(), uploads.follow()):
            yield uploads
    finally:
        await uploads.close()


def _described(source: SourceFile, entry: DocumentEntry | None = None) -> UploadedDocument:
    """Return the description of a stored document. `entry`: the document's entry in the record of
    the last build; None if no build has read the document yet.
    """
    document = UploadedDocument(source.name, source.size_bytes, source.mtime_ns / 1e9)
    if entry is None:
        return document
    # Show the document's name instead of its path, so that tenants do not see the gateway's folders
    not_read = (entry.error or entry.unread).replace(escaped(source.path), source.name)
    return replace(
        document,
        state="skipped" if entry.error else "indexed",
        passages=entry.passages,
        not_read=not_read,
    )
