"""Which weights an engine of ours serves, under whatever name."""

import hashlib
from pathlib import Path

from serving.files import sha256_of


def weights_of(path: str) -> str:
    """SHA-256 over the config and the weights in a model's folder; for what is no folder, the path itself. Takes
    seconds for every GB. Raises `OSError`.
    """
    folder = Path(path)
    if not folder.is_dir():
        return path
    files = sorted(file for name in ("config.json", "*.safetensors") for file in folder.glob(name))
    lines = "".join(f"{sha256_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
