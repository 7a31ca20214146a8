"""Vectors in Milvus, a vector database on other machines.

Milvus finds candidates, and their exact scores are computed here, from the file of `FaissIndex`. An
index is a partition of a collection. A build inserts the passages that the partition lacks, and
then deletes those that are gone. So it can be repeated after a kill, and gateways that still search
the previous generation find less for a moment, but nothing wrong.
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

from router.errors import UpstreamUnavailable
from router.models.failures import without_userinfo
from router.trace.scope import DocumentFilter
from serving.config.config import MilvusConfig
from serving.config.secrets import api_key
from serving.documents.metadata import StoredPassage
from serving.retrieval.candidates import CandidateIndex, Ids, write_ids
from serving.retrieval.embedder import Rows, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.passages import PassageStore

_BATCH = 1024
"""Number of passages in a request, which may have 64 MiB."""
_SPECIAL = re.compile(r'[%_"\\\x00-\x1f]')


class MilvusStore:
    """The `VectorStore` of a partition in Milvus. Builds and searches raise `UpstreamUnavailable`
    if Milvus fails.
    """

    def __init__(self, config: MilvusConfig) -> None:
        self.name = f"Milvus {config.collection}/{config.partition}"
        self._config = config
        self._collection = config.collection
        self._partition = config.partition
        self._is_loaded = False

    def build(
        self, folder: Path, dimension: int, batches: Iterable[Vectors]
    ) -> Mapping[int, float]:
        """See `VectorStore.build`."""
        FaissIndex.build(folder, dimension, batches)
        exact = FaissIndex.open(folder)
        passages = PassageStore(folder)
        ids = write_ids(folder)
        with self._client(dimension) as client:
            pages = client.query_iterator(
                self._collection, _BATCH, output_fields=["id"], partition_names=[self._partition]
            )
            entities = chain.from_iterable(iter(pages.next, []))
            known = np.fromiter((entity["id"] for entity in entities), np.int64)
            for rows in _batches(np.flatnonzero(~np.isin(ids, known))):
                missing = [
                    {"id": int(ids[row]), "vector": vector, **_properties(passages.stored(row))}
                    for row, vector in zip(rows.tolist(), exact.vectors(rows), strict=True)
                ]
                client.insert(self._collection, missing, partition_name=self._partition)
            for gone in _batches(known[~np.isin(known, ids)]):
                client.delete(self._collection, gone.tolist(), partition_name=self._partition)
        return self.open(folder).recall()

    def open(self, folder: Path) -> CandidateIndex:
        """See `VectorStore.open`. Milvus is not called before the first search."""
        return CandidateIndex(folder, self._find)

    def _find(
        self, queries: Vectors, count: int, among: Ids | None, only: DocumentFilter
    ) -> Iterable[Ids]:
        """See `Find`. Milvus applies the filter."""
        with self._client() as client:
            found = client.search(
                self._collection,
                list(queries),
                _condition(only),
                count,
                timeout=self._config.timeout_s,
                partition_names=[self._partition],
            )
            return [np.array([hit["id"] for hit in hits], np.int64) for hits in found]

    @contextmanager
    def _client(self, dimension: int = 0) -> Iterator[Any]:
        """Yield a client. With a `dimension`, the partition is created if it is missing."""
        from pymilvus import MilvusException

        config = self._config
        try:
            token = api_key(config.token_env)
            client = _connected(config.address, token, config.timeout_s)
            if dimension and not client.has_collection(self._collection):
                client.create_collection(
                    self._collection, dimension, metric_type="IP", consistency_level="Session"
                )
            if dimension and not client.has_partition(self._collection, self._partition):
                client.create_partition(self._collection, self._partition)
            if not self._is_loaded:
                client.load_collection(self._collection, config.timeout_s)
                self._is_loaded = True
            yield client
        except (MilvusException, grpc.RpcError) as error:
            self._is_loaded = False  # Milvus may have been restarted
            reason = error.message if isinstance(error, MilvusException) else error.details()
            raise UpstreamUnavailable(
                f"{self.name}: {reason}", endpoint=without_userinfo(config.address)
            ) from error


@cache
def _connected(address: str, token: str | None, timeout_s: float) -> Any:
    from pymilvus import MilvusClient

    # It logs each failed attempt with a traceback
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return MilvusClient(address, token=token or "", timeout=timeout_s)


def _batches(values: Rows) -> Iterator[Rows]:
    return (values[start : start + _BATCH] for start in range(0, len(values), _BATCH))


def _properties(passage: StoredPassage) -> dict[str, Any]:
    metadata = passage.metadata
    folded = {"title": metadata.title.casefold(), "author": metadata.author.casefold()}
    return {**msgspec.to_builtins(metadata), **folded}


def _condition(only: DocumentFilter) -> str:
    """Return a condition in Milvus's language that all documents fulfil that `only` admits, and few
    others: in its patterns, a special character stands for any character.
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
        # `~` is behind all digits and hyphens
        conditions.append(f'date >= "{only.from_date or 0}" and date <= "{only.to_date or 9}~"')
    if only.tags:
        conditions.append(f"json_contains_all(tags, {json.dumps(only.tags)})")
    return " and ".join(conditions)
