"""The configuration: frozen values that refuse unknown keys.

Paths are relative to the file that they stand in, or, in a shipped preset, to the working directory. `~` is the home
folder, and `shipped:` what comes with the package, as in `shipped:prompts/full/delegation.txt`.
"""

from typing import Literal

import msgspec


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gRPC edge and the store."""

    address: str = "127.0.0.1:50551"
    """host:port; port 0 takes any free one."""
    store: str = "sqlite:///rolegate.db"
    """A database URL; a relative path of SQLite stands beside the config file."""
    timeout_s: float = 120.0
    """The longest a request may take, whatever the client's deadline."""
    grace_s: float = 30.0
    """How long running requests may take to finish after SIGTERM."""
    max_question_chars: int = 4000


class SearchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The search loop's budgets."""

    max_rounds: int = 4
    """Delegator decisions (T)."""
    max_sub_queries: int = 8
    """Sub-queries of one block that are dispatched."""
    max_turns: int = 3
    """Executor turns, the report included (K)."""
    max_searches: int = 2
    """Searches of one executor."""
    top_k: int = 3
    """Passages shown for each search."""
    require_evidence: bool = True
    """Without any evidence, say "not found" instead of letting the answerer guess."""
    scope: str | None = None
    """A text file of the only words and names that a question may use; for models of one small language."""


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A vLLM process that the gateway starts and stops."""

    path: str
    """The model's folder, or a name that vLLM knows."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's API server."""


class RoleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One role. Its model is on an `engine` of ours, at a `base_url`, or, with neither, wherever LiteLLM finds it."""

    model: str
    """The name under which the endpoint serves it."""
    prompt: str
    """The file that holds the system prompt."""
    engine: str | None = None
    """A name of the table `engines`."""
    base_url: str | None = None
    """An OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."""
    api_key_env: str | None = None
    """The environment variable that holds the key."""
    max_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    thinking: bool | None = None
    """Switches a chat template's thinking on or off; absent leaves it to the template."""
    attempts: int = 3
    """How often a call is tried while its endpoint is unavailable."""


class RolesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The three roles."""

    delegation: RoleConfig
    execution: RoleConfig
    answer: RoleConfig


class EmbedderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What turns text into vectors: MiniLM in process, or an OpenAI-compatible endpoint."""

    kind: Literal["minilm", "endpoint"] = "minilm"
    base_url: str | None = None
    model: str | None = None
    dimension: int | None = None
    api_key_env: str | None = None


class RetrievalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where passages come from: an index in process, or a retrieval server by address."""

    address: str | None = None
    """host:port of a RetrievalService."""
    index: str | None = None
    """An index folder."""
    corpus: str | None = None
    """The corpus.jsonl that the index is built from at the start, where it is missing or of another corpus."""
    lexical: bool = False
    """Fuse lexical ranks in; the index must have been built with them."""
    embedder: EmbedderConfig = EmbedderConfig()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything."""

    roles: RolesConfig
    retrieval: RetrievalConfig
    server: ServerConfig = ServerConfig()
    search: SearchConfig = SearchConfig()
    engines: dict[str, EngineConfig] = {}
