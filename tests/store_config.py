"""A config for commands that need only its store."""

from pathlib import Path

_ROLE = '[roles.{name}]\nmodel = "any"\nprompt = "prompt.txt"\n'


def write_config(folder: Path, store: str = "sqlite:///rolegate.db", server: str = "") -> Path:
    """Write `rolegate.toml`, which has its store in `rolegate.db` next to it, or at the URL
    `store`, and return its path. `server`: further lines of its section `server`.
    """
    roles = "".join(_ROLE.format(name=name) for name in ("delegation", "execution", "answer"))
    file = folder / "rolegate.toml"
    file.write_text(f'[server]\nstore = "{store}"\n{server}\n[retrieval]\n{roles}')
    return file
