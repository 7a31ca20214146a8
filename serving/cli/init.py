"""`rolegate init`: write a config of your own, from a shipped one and the answers to a few
questions.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from rich.prompt import Prompt

from router.errors import BadConfig
from serving.cli.options import CONFIG, new_parser
from serving.config.check import problems
from serving.config.config import Config
from serving.config.file import parse_config, preset
from serving.files import write_atomically

_PRESETS = ("hosted", "one-gpu", "local")
_ROLES = {"backbone": "delegation", "executor": "execution", "answerer": "answer"}
_QUESTIONS = {
    "preset": (
        "what there is; hosted: an API key, one-gpu: an API key and a GPU, local: a model "
        "server of your own"
    ),
    "base_url": "where the models are: an OpenAI-compatible address, which ends in /v1",
    "backbone": "splits the question into sub-queries; give it the best model that you have",
    "executor": "searches and reads; a small, fast model suffices",
    "answerer": "writes the answer from the reports",
    "key_env": "the environment variable that holds the API key; never the key itself",
    "embedder": (
        "turns text into vectors: minilm, in process, or a model of an OpenAI-compatible server"
    ),
    "embedder_url": "where the embedder is: an OpenAI-compatible address, which ends in /v1",
    "embedder_dimension": "how many numbers are in one of its vectors; its model card says it",
    "documents": "the files and folders to answer from",
}


def init(arguments: Sequence[str]) -> int:
    """Ask, write, and tell what comes next."""
    parser = new_parser(
        "init",
        """Writes a config, commented, from a shipped one. What no option names is asked for, always
        with a default; without a terminal, or with --yes, the defaults are taken.""",
    )
    for name, explained in _QUESTIONS.items():
        nargs = "+" if name == "documents" else None
        choices = _PRESETS if name == "preset" else None
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, metavar="VALUE", nargs=nargs, choices=choices, help=explained)
    parser.add_argument(
        "--out", type=Path, default=CONFIG, metavar="FILE", help="where to (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="write over the file that is there")
    parser.add_argument("--yes", action="store_true", help="ask nothing")
    given = parser.parse_args(arguments)
    if given.out.exists() and not given.force:
        raise BadConfig(
            f"{given.out}: is there already; name another file with --out, or write over "
            "it with --force."
        )
    if not given.out.parent.is_dir():
        raise BadConfig(
            f"{given.out.parent}: there is no such folder; make it, or name another file "
            "with --out."
        )
    config = _write(given, asking=sys.stdin.isatty() and not given.yes)
    print("\n".join(_next_steps(config, given.out)))
    return 0


def _write(given: argparse.Namespace, *, asking: bool) -> Config:
    """Write the file, unless something is wrong with it. Raises `BadConfig`."""

    def settled(name: str, default: object, choices: list[str] | None = None) -> str:
        """The option's value, or else the user, or else the default; without a default there is
        no question.
        """
        answer = getattr(given, name)
        if answer is None and asking and default is not None:
            print(f"\n{_QUESTIONS[name]}")
            answer = Prompt.ask(name.replace("_", " "), default=str(default), choices=choices)
        return str(answer if answer is not None else default or "")

    document: dict[str, Any] = tomlkit.parse(
        preset(settled("preset", "hosted", list(_PRESETS))).read_text("utf-8")
    )
    backbone = document["roles"]["delegation"]
    embedder = document["retrieval"]["embedder"]
    answers = {"base_url": settled("base_url", backbone.get("base_url"))}
    # Where one model does for several roles, so does the one that takes its place
    for name, role in _ROLES.items():
        model = document["roles"][role]["model"]
        answers[name] = settled(
            name, answers.get("backbone", model) if model == backbone["model"] else model
        )
    answers["key_env"] = settled("key_env", backbone.get("api_key_env"))
    answers["embedder"] = settled("embedder", embedder.get("model", "minilm"))
    other = answers["embedder"] not in ("minilm", embedder.get("model"))
    url = "" if "engine" in embedder else embedder.get("base_url", answers["base_url"])
    answers["embedder_url"] = settled("embedder_url", url if other else None)
    answers["embedder_dimension"] = settled("embedder_dimension", "" if other else None)
    here = "documents" if Path("documents").exists() else ""
    named = given.documents or settled("documents", here).split(",")
    places = [Path(place.strip()).expanduser() for place in named if place.strip()]
    document["retrieval"]["documents"] = [
        str(place) if place.is_absolute() else os.path.relpath(place, given.out.parent)
        for place in places
    ]
    _fill_roles(document, answers)
    _fill_embedder(document, answers)
    text = f"{tomlkit.dumps(document).rstrip()}\n".encode()
    config = parse_config(text, given.out)
    for problem in problems(config):
        raise BadConfig(f"{given.out} is not written: {problem}")
    write_atomically(given.out, text)
    return config


def _fill_roles(document: dict[str, Any], answers: Mapping[str, str]) -> None:
    if not re.fullmatch("[A-Z_][A-Z0-9_]*|", answers["key_env"]):
        raise BadConfig(
            "--key-env: takes the name of an environment variable, in capitals, never "
            "the key itself."
        )
    for name, role in _ROLES.items():
        table = document["roles"][role]
        table["model"] = answers[name]
        if engine := table.get("engine"):
            document["engines"][engine]["path"] = answers[name]
        else:
            given = {"base_url": answers["base_url"], "api_key_env": answers["key_env"]}
            table |= {key: answer for key, answer in given.items() if answer}


def _fill_embedder(document: dict[str, Any], answers: Mapping[str, str]) -> None:
    table = document["retrieval"]["embedder"]
    model = answers["embedder"]
    url = answers["embedder_url"]
    if "engine" in table and (url or model == "minilm"):
        del document["engines"][table.pop("engine")]
    if "engine" in table:
        document["engines"][table["engine"]]["path"] = model
    if model != table.get("model", "minilm"):
        for key in [key for key in table if key not in ("engine", "api_key_env")]:
            del table[key]  # it was the other model's
    if model == "minilm":
        for key in list(table):
            del table[key]
        return
    dimension = answers["embedder_dimension"]
    wanted = {
        "model": model,
        "base_url": url,
        "dimension": int(dimension) if dimension.isdecimal() else dimension,
    }
    table |= {key: answer for key, answer in wanted.items() if answer}
    if url and not url.startswith("https:"):
        table.pop("api_key_env", None)  # no key goes over the open wire
    elif answers["key_env"] and (url or "api_key_env" in table):
        table["api_key_env"] = answers["key_env"]


def _next_steps(config: Config, out: Path) -> list[str]:
    roles = config.roles.by_name.values()
    hosted = any(role.engine is None and role.base_url is None for role in roles)
    minilm = config.retrieval.embedder.in_process and not config.engines
    if config.engines:
        extras = "one-gpu" if hosted else "gpu"
    else:
        extras = ",".join(["hosted"] * hosted + ["local"] * (minilm or not hosted))
    keys = {role.api_key_env for role in roles} | {config.retrieval.embedder.api_key_env}
    chosen = "" if out == CONFIG else f" --config {shlex.quote(str(out))}"
    steps = [
        f"pip install '.[{extras}]'   (where rolegate's pyproject.toml is)",
        *(f"export {key}=…" for key in sorted(filter(None, keys)) if key not in os.environ),
        *(
            []
            if config.retrieval.documents
            else ["(put the paths of your documents into retrieval.documents)"]
        ),
        *(f"rolegate {command}{chosen}" for command in ("index build", "check --live", "serve")),
        f'rolegate ask "…" --address {config.server.address}',
    ]
    return [f"{out} is written. Next:", *(f"  {step}" for step in steps)]
