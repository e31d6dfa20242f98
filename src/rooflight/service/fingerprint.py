"""Whether two servers have the same model: a hash of its files, and of the sizes of its cache."""

import os
from hashlib import sha256
from pathlib import Path

from rooflight.engine import EngineConfig

_EDGE = 1 << 20  # bytes of a file that are read at either end


def fingerprint(folder: Path, config: EngineConfig, dtype: str) -> str:
    """Of config.json, and of the beginning, end and length of each safetensors file.

    Weights that differ only in the middle of a file are not told apart: reading all of them takes
    as long as loading them.
    """
    digest = sha256(f"{dtype} {config.cache_dtype} {config.block_tokens}".encode())
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_EDGE))
            file.seek(max(0, size - _EDGE), os.SEEK_SET)
            digest.update(file.read(_EDGE))
    return digest.hexdigest()
