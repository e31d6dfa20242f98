"""Whether two servers have the same model: a hash of its files, and of the sizes of its cache."""

import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from pathlib import Path

from rooflight.serve.engine.config import EngineConfig


def fingerprint(folder: Path, config: EngineConfig, dtype: str) -> str:
    """Of every byte of config.json and of each safetensors file, which takes a core a second a GB.

    Files are read beside each other, as loading them reads them: the disk has them in memory then.
    """
    paths = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    digest = sha256(f"{dtype} {config.cache_dtype} {config.block_tokens}".encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, found in zip(paths, pool.map(_file_digest, paths), strict=True):
            digest.update(f"{path.name} {found}".encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
