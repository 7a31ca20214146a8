"""`rolegate index`: build the index that retrieval searches."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from serving.config import EmbedderConfig
from serving.retrieval.index import build_index
from serving.retrieval.local_index import new_embedder


def main(arguments: Sequence[str]) -> int:
    """`rolegate index build`."""
    parser = argparse.ArgumentParser(prog="rolegate index", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser(
        "build",
        help="embed a corpus into a new folder",
        description="Embeds every row of a corpus. The folder appears when all is done; a build that is interrupted "
        "leaves nothing that could be mistaken for an index.",
    )
    build.add_argument("--corpus", type=Path, required=True, metavar="FILE.jsonl", help='rows {"id", "title", "text"}')
    build.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    build.add_argument("--lexical", action="store_true", help="keep word statistics too, to be fused with the vectors")
    add_embedder(build)
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("embedding", total=None)
        manifest = build_index(
            given.corpus,
            given.out,
            new_embedder(embedder_config(given)),
            lexical=given.lexical,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    Console().print(f"{given.out}: {manifest.passages} passages, {manifest.embedder}", highlight=False)
    return 0


def add_embedder(parser: argparse.ArgumentParser) -> None:
    """Options for an embedder other than the default one."""
    group = parser.add_argument_group("embedder", "all-MiniLM-L6-v2 in this process, unless an endpoint is named")
    group.add_argument("--embedder-url", metavar="URL", help="an OpenAI-compatible endpoint, http://…/v1")
    group.add_argument("--embedder-model", metavar="NAME", help="the model's name there")
    group.add_argument("--embedder-dimension", type=int, metavar="N", help="numbers in one of its vectors")
    group.add_argument("--embedder-key-env", metavar="NAME", help="the environment variable that holds the key")


def embedder_config(given: argparse.Namespace) -> EmbedderConfig:
    """What the options name."""
    return EmbedderConfig(
        kind="endpoint" if given.embedder_url else "minilm",
        base_url=given.embedder_url,
        model=given.embedder_model,
        dimension=given.embedder_dimension,
        api_key_env=given.embedder_key_env,
    )
