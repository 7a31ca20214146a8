"""The config of a gateway in front of canned models."""

from pathlib import Path

_ROLE = """
[roles.{role}]
model = "{model}"
prompt = "shipped:prompts/full/{role}.txt"
base_url = "{base_url}"
max_tokens = 64
"""


def canned_config(folder: Path, base_url: str, retrieval: str, store: str, *, reuse: bool = False) -> Path:
    """Write the config into `folder`; its file. `retrieval`: host:port. `reuse`: whether executor runs are shared, as
    they are by default; questions that are all the same would have the same sub-queries.
    """
    roles = {"delegation": "delegator", "execution": "executor", "answer": "answerer"}
    text = f'[server]\nstore = "{store}"\n[retrieval]\naddress = "{retrieval}"\n'
    text += "" if reuse else "[reuse]\nenabled = false\n"
    text += "".join(_ROLE.format(role=role, model=model, base_url=base_url) for role, model in roles.items())
    file = folder / "rolegate.toml"
    file.write_text(text, "utf-8")
    return file
