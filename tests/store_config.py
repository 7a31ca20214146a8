"""A config for commands that need only its store."""

from pathlib import Path

_ROLE = '[roles.{name}]\nmodel = "any"\nprompt = "prompt.txt"\n'


def write_config(folder: Path) -> None:
    """Write `rolegate.toml`, which has its store in `rolegate.db` next to it."""
    roles = "".join(_ROLE.format(name=name) for name in ("delegation", "execution", "answer"))
    (folder / "rolegate.toml").write_text(
        f'[server]\nstore = "sqlite:///rolegate.db"\n[retrieval]\n{roles}'
    )
