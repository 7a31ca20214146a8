"""`rolegate init`: write a config, made from a preset and the user's answers to a few questions."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
from rich.prompt import Prompt

from router.errors import BadConfig
from serving.cli.command import CONFIG, parse, shown_as
from serving.cli.options import File, Options, check_new_file
from serving.config.check import problems
from serving.config.config import Config
from serving.config.file import parse_config, preset
from serving.field_docs import field_docs
from serving.files import write_atomically

_ROLES = {"backbone": "delegation", "executor": "execution", "answerer": "answer"}
Value = Annotated[str, shown_as("VALUE")]


class InitOptions(Options):
    """Write a commented config file, starting from a preset.

    In a terminal, the command asks for each setting whose option is not given, and offers a
    default. Without a terminal, or with --yes, it uses the defaults.
    """

    preset: Literal["hosted", "one-gpu", "local"] | None = None
    """Preset to start from: hosted needs an API key, one-gpu an API key and a GPU, and local a
    model server.
    """
    base_url: Value | None = None
    """Base URL of the models: an OpenAI-compatible address that ends in /v1."""
    backbone: Value | None = None
    """Model that splits the question into sub-queries; choose the best model that you have."""
    executor: Value | None = None
    """Model that searches and reads; a small, fast model is enough."""
    answerer: Value | None = None
    """Model that writes the answer from the reports."""
    key_env: Value | None = None
    """Name of the environment variable that holds the API key, such as OPENAI_API_KEY (not the key
    itself).
    """
    embedder: Value | None = None
    """Embedder, the model that turns passages and queries into vectors: minilm (runs in the
    gateway), or the name of a model on an OpenAI-compatible server.
    """
    embedder_url: Value | None = None
    """Base URL of the embedder: an OpenAI-compatible address that ends in /v1."""
    embedder_dimension: Value | None = None
    """Number of components of the embedder's vectors, such as 1024; its model card states it."""
    documents: Annotated[tuple[str, ...], shown_as("VALUE")] = ()
    """Files and folders that the gateway searches to answer questions."""
    out: File = CONFIG
    """Write the config to this file."""
    force: bool = False
    """Overwrite the file if it exists."""
    yes: bool = False
    """Ask nothing; for options that are not given, use the defaults of the preset."""


def init(arguments: Sequence[str]) -> int:
    """Run `rolegate init`: ask, write the config, print the next steps; return the exit status."""
    options = parse(InitOptions, "init", arguments)
    check_new_file("--out", options.out, force=options.force)
    config = _write(options, asking=sys.stdin.isatty() and not options.yes)
    print("\n".join(_next_steps(config, options.out)))
    return 0


def _write(options: InitOptions, *, asking: bool) -> Config:
    """Write the config file, and return the config in it. `asking`: ask the user for each setting
    whose option is not given. If the config would have problems, raise `BadConfig` and write no
    file.
    """
    questions = field_docs(InitOptions)

    def settled(name: str, default: object, choices: list[str] | None = None) -> str:
        """Return the value of the option `name`. If the option is not given, ask the user, and
        offer `default`. If `asking` is False or `default` is None, do not ask: return `default`, or
        "" for None.
        """
        answer = getattr(options, name) or None
        if answer is None and asking and default is not None:
            print(f"\n{questions[name]}")
            answer = Prompt.ask(name.replace("_", " "), default=str(default), choices=choices)
        return str(answer if answer is not None else default or "")

    document: dict[str, Any] = tomlkit.parse(
        preset(settled("preset", "hosted", ["hosted", "one-gpu", "local"])).read_text("utf-8")
    )
    backbone = document["roles"]["delegation"]
    embedder = document["retrieval"]["embedder"]
    answers = {"base_url": settled("base_url", backbone.get("base_url"))}
    # If a role has the backbone's model in the preset, its default is the new backbone's model
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
    named = options.documents or settled("documents", here).split(",")
    places = [Path(place.strip()).expanduser() for place in named if place.strip()]
    document["retrieval"]["documents"] = [
        str(place) if place.is_absolute() else os.path.relpath(place, options.out.parent)
        for place in places
    ]
    _fill_roles(document, answers)
    _fill_embedder(document, answers)
    text = f"{tomlkit.dumps(document).rstrip()}\n".encode()
    config = parse_config(text, options.out)
    for problem in problems(config):
        raise BadConfig(
            f"{options.out} is not written: {re.sub('roles.*base_url', '--base-url', problem)}"
        )
    write_atomically(options.out, text)
    return config


def _fill_roles(document: dict[str, Any], answers: Mapping[str, str]) -> None:
    if not re.fullmatch("[A-Z_][A-Z0-9_]*|", answers["key_env"]):
        raise BadConfig(
            "--key-env: must be the name of an environment variable in capitals, such as "
            "OPENAI_API_KEY; put the key into that variable."
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
            del table[key]  # these keys belong to the preset's model
    if model == "minilm":
        table.clear()
        return
    dimension = answers["embedder_dimension"]
    wanted = {
        "model": model,
        "base_url": url,
        "dimension": int(dimension) if dimension.isdecimal() else dimension,
    }
    table |= {key: answer for key, answer in wanted.items() if answer}
    if url and not url.startswith("https:"):
        table.pop("api_key_env", None)  # never send a key unencrypted
    elif answers["key_env"] and (url or "api_key_env" in table):
        table["api_key_env"] = answers["key_env"]


def _next_steps(config: Config, out: Path) -> list[str]:
    roles = config.roles.by_name.values()
    keys = {role.api_key_env for role in roles} | {config.retrieval.embedder.api_key_env}
    chosen = "" if out == CONFIG else f" --config {shlex.quote(str(out))}"
    steps = [f"export {key}=…" for key in sorted(filter(None, keys)) if key not in os.environ]
    if not config.retrieval.documents:
        steps.append("(put the paths of your documents into retrieval.documents)")
    steps += [
        *(f"rolegate {command}{chosen}" for command in ("index build", "check --live", "serve")),
        f'rolegate ask "…" --address {config.server.address}  # once it prints serve.ready',
    ]
    return [f"{out} is written. Next:", *(f"  {step}" for step in steps)]
