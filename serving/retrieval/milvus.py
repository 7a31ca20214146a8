"""Vectors in Milvus, a vector database on another machine.

Milvus finds candidates. Their exact scores are computed in this process, from the vectors in the
file of `FaissIndex`. Each index is a partition of a collection. A build inserts passages that are
missing in the partition, and then deletes removed passages. So a killed build can be repeated.
Gateways that still search the previous generation may find fewer passages for a moment, but no
wrong passages.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np

from router.errors import BadIndex, UpstreamUnavailable
from router.models.failures import without_userinfo
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.config.config import MilvusConfig
from serving.config.secrets import api_key
from serving.documents.metadata import StoredPassage
from serving.retrieval.candidates import IDS, CandidateIndex, Ids, read_ids, write_ids
from serving.retrieval.embedder import Rows, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.passages import PassageStore

_BATCH = 1024
"""Number of passages per request. Milvus accepts requests of up to 64 MiB."""
_BUILD_S = 60.0
"""Timeout of a request during a build, in seconds. It is long, because the first search after many
inserts takes long.
"""
_RECONNECT_MS = 2000
"""Max milliseconds between two attempts to connect. gRPC's default is two minutes; with it,
searches would fail for up to two minutes after Milvus is up again.
"""
_ADVICE = {
    2: "start Milvus at `milvus.address`, or correct the address",
    100: "run `rolegate index build`",
}
"""Advice for an error, by its code in Milvus: 2 for no connection, 100 for no collection."""
_SPECIAL = re.compile(r'[%_"\\\x00-\x1f]')


class MilvusStore:
    """The `VectorStore` that keeps an index in a partition of Milvus."""

    def __init__(self, config: MilvusConfig) -> None:
        self.name = f"Milvus {config.collection}/{config.partition}"
        self._partition = Partition(config, self.name)
        self._search_s = config.timeout_s

    def build(
        self, folder: Path, dimension: int, batches: Iterable[Vectors]
    ) -> Mapping[int, float]:
        """Write a new index, as `VectorStore.build` specifies. Raises `UpstreamUnavailable` if
        Milvus fails. If Milvus cannot be reached at the start, nothing is embedded.
        """
        self._partition.create(dimension)
        FaissIndex.build(folder, dimension, batches)
        self._partition.fill(folder, write_ids(folder))
        return MilvusIndex(folder, self._partition, _BUILD_S).recall()

    def open(self, folder: Path) -> FaissIndex:
        """Open the index, as `VectorStore.open` specifies. Milvus is not called before the first
        search. If no build has copied the vectors to Milvus yet, the index is opened for exact
        search without Milvus.
        """
        if (folder / IDS).exists():
            return MilvusIndex(folder, self._partition, self._search_s)
        return FaissIndex.open(folder)

    def is_complete(self, folder: Path) -> bool:
        """Return True if the partition in Milvus has as many passages as the index. Only these
        numbers are compared.
        """
        return self._partition.count() == len(np.unique(read_ids(folder)))


class MilvusIndex(CandidateIndex):
    """The opened `VectorIndex` of a `MilvusStore`. Searches raise `UpstreamUnavailable` if Milvus
    fails.
    """

    few = 0
    """Milvus applies filters itself. So a filtered search always asks Milvus for candidates."""

    def __init__(self, folder: Path, partition: "Partition", timeout_s: float) -> None:
        super().__init__(folder)
        self._partition = partition
        self._timeout_s = timeout_s

    def candidates(
        self, queries: Vectors, count: int, among: Rows | None, only: DocumentFilter
    ) -> Iterable[Ids]:
        """Return candidates from Milvus, as `CandidateIndex.candidates` specifies. Milvus applies
        the filter `only`.
        """
        return self._partition.search(queries, count, only, self._timeout_s)


class Partition:
    """A partition of a collection in Milvus. Methods block, and raise `UpstreamUnavailable` if
    Milvus fails or does not answer before the timeout.
    """

    def __init__(self, config: MilvusConfig, name: str) -> None:
        """`name`: name of the partition in error messages."""
        self._config = config
        self._name = name
        self._collection = config.collection
        self._is_loaded = False

    def create(self, dimension: int) -> None:
        """Create the partition and its collection, if they are missing. Raises `BadIndex` if the
        vectors of the collection have another dimension.
        """
        with self._calls() as client:
            if not client.has_collection(self._collection, self._config.timeout_s):
                client.create_collection(
                    self._collection,
                    dimension,
                    metric_type="IP",
                    consistency_level="Session",
                    timeout=_BUILD_S,
                )
            if not self._exists(client):
                client.create_partition(self._collection, self._config.partition, _BUILD_S)
            described = client.describe_collection(self._collection, self._config.timeout_s)
        (vectors,) = [field for field in described["fields"] if field["name"] == "vector"]
        if vectors["params"]["dim"] != dimension:
            raise BadIndex(
                f"{self._name}: the collection has dimension {vectors['params']['dim']}, and the "
                f"embedder {dimension}; name another `milvus.collection`."
            )

    def count(self) -> int:
        """Return the number of passages in the partition; 0 if the partition is missing."""
        with self._calls() as client:
            is_there = client.has_collection(self._collection, self._config.timeout_s)
            if not is_there or not self._exists(client):
                return 0
            self._load(client, _BUILD_S)
            answer = client.query(self._collection, output_fields=["count(*)"], **self._reading())
            return int(answer[0]["count(*)"])

    def fill(self, folder: Path, ids: Ids) -> None:
        """Insert and delete passages, so that the partition contains exactly the passages of the
        index in `folder`. `ids`: the id of each row.
        """
        exact = FaissIndex.open(folder)
        passages = PassageStore(folder)
        writing = {"partition_name": self._config.partition, "timeout": _BUILD_S}
        with self._calls() as client:
            self._load(client, _BUILD_S)
            pages = client.query_iterator(
                self._collection, _BATCH, output_fields=["id"], **self._reading()
            )
            entities = chain.from_iterable(iter(pages.next, []))
            known = np.fromiter((entity["id"] for entity in entities), np.int64)
            for rows in _batches(np.flatnonzero(~np.isin(ids, known))):
                missing = [
                    {"id": int(ids[row]), "vector": vector, **_properties(passages.stored(row))}
                    for row, vector in zip(rows.tolist(), exact.vectors(rows), strict=True)
                ]
                # Another gateway that builds the same index may insert the same passages
                client.upsert(self._collection, missing, **writing)
            for gone in _batches(known[~np.isin(known, ids)]):
                client.delete(self._collection, gone.tolist(), **writing)

    def search(
        self, queries: Vectors, count: int, only: DocumentFilter, timeout_s: float
    ) -> list[Ids]:
        """Return the ids of the `count` passages nearest to each query. Only passages that the
        filter `only` admits are searched (see `_condition`).
        """
        with self._calls() as client:
            self._load(client, timeout_s)
            found = client.search(
                self._collection,
                list(queries),
                _condition(only),
                count,
                timeout=timeout_s,
                partition_names=[self._config.partition],
            )
        ids = [np.array([hit["id"] for hit in hits], np.int64) for hits in found]
        if only == NO_FILTER and not all(map(len, ids)):
            raise self._failed("the partition is empty; run `rolegate index build`")
        return ids

    def _exists(self, client: Any) -> bool:
        return bool(
            client.has_partition(self._collection, self._config.partition, self._config.timeout_s)
        )

    def _reading(self) -> dict[str, Any]:
        """Return arguments for a request that reads the partition after all earlier writes."""
        return {
            "partition_names": [self._config.partition],
            "consistency_level": "Strong",
            "timeout": _BUILD_S,
        }

    def _load(self, client: Any, timeout_s: float) -> None:
        if not self._is_loaded:
            client.load_collection(self._collection, timeout_s)
            self._is_loaded = True

    @contextmanager
    def _calls(self) -> Iterator[Any]:
        """Yield a client, and turn its errors into `UpstreamUnavailable`."""
        from pymilvus import MilvusException

        try:
            token = api_key(self._config.token_env)
            yield _connected(self._config.address, token, self._config.timeout_s)
        except (MilvusException, grpc.RpcError) as error:
            self._is_loaded = False  # Milvus may have been restarted
            if isinstance(error, MilvusException):
                advice = _ADVICE.get(error.code)
                reason = f"{error.message}; {advice}" if advice else error.message
            else:
                reason = f"{error.details()}; check that Milvus works, or raise `milvus.timeout_s`"
            raise self._failed(reason) from error

    def _failed(self, reason: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(
            f"{self._name}: {reason}", endpoint=without_userinfo(self._config.address)
        )


@cache
def _connected(address: str, token: str | None, timeout_s: float) -> Any:
    from pymilvus import MilvusClient

    # pymilvus logs each failed attempt with a traceback
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    options = {"grpc.max_reconnect_backoff_ms": _RECONNECT_MS}
    return MilvusClient(address, token=token or "", timeout=timeout_s, grpc_options=options)


def _batches(values: Rows) -> Iterator[Rows]:
    return (values[start : start + _BATCH] for start in range(0, len(values), _BATCH))


def _properties(passage: StoredPassage) -> dict[str, Any]:
    metadata = passage.metadata
    folded = {"title": metadata.title.casefold(), "author": metadata.author.casefold()}
    return {**msgspec.to_builtins(metadata), **folded}


def _condition(only: DocumentFilter) -> str:
    """Return a filter expression for Milvus. It matches the passages of all documents that `only`
    admits. It may also match passages of a few other documents, because special characters in texts
    become wildcards. The passages of those other documents are dropped later.
    """
    texts = {
        "title": only.title.casefold(),
        "author": only.author.casefold(),
        "path": only.path_prefix,
    }
    conditions = []
    for name, text in texts.items():
        if text:
            before = "" if name == "path" else "%"
            conditions.append(f'{name} like "{before}{_SPECIAL.sub("_", text)}%"')
    if only.from_date or only.to_date:
        # `~` sorts after all digits and hyphens
        conditions.append(f'date >= "{only.from_date or 0}" and date <= "{only.to_date or 9}~"')
    if only.tags:
        conditions.append(f"json_contains_all(tags, {json.dumps(only.tags)})")
    return " and ".join(conditions)
