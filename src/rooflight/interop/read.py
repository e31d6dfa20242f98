"""Another framework's configuration as the parts of a plan."""

from collections.abc import Sequence
from pathlib import Path

from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.slice import Slice
from rooflight.interop.framework import FRAMEWORKS, load_framework
from rooflight.interop.imported import Imported
from rooflight.interop.megatron.arguments import is_megatron_yaml, read_arguments
from rooflight.interop.megatron.read import import_megatron
from rooflight.interop.read_maxtext import import_maxtext
from rooflight.interop.read_torchtitan import import_torchtitan
from rooflight.interop.settings import read_settings
from rooflight.models.spec import ModelSpec

READABLE = FRAMEWORKS
_SUFFIXES = {".sh": "megatron", ".bash": "megatron", ".slurm": "megatron", ".toml": "torchtitan"}


def import_config(
    words: Sequence[str], *, on: Slice, framework: str | None = None, model: ModelSpec | None = None
) -> Imported:
    """Reads files and `key=value` words of one of `READABLE`, as if run on a slice.

    Without a framework the name of the first file says whose it is.

    >>> from rooflight.hardware.slice import parse_slice
    >>> words = ["model_name=llama3-8b", "ici_tensor_sequence_parallelism=4"]
    >>> found = import_config(words, framework="maxtext", on=parse_slice("v5e:4x4"))
    >>> found.layout, str(found.mesh), found.batch
    ('fsdp=X,sp=Y', 'X=4@x,Y=4@y', 192)
    """
    name = framework or guess_framework(words)
    if name not in READABLE:
        raise UnknownNameError("framework", name, READABLE)
    if name == "megatron":
        return import_megatron(read_arguments(words), on=on, model=model)
    settings = read_settings(words, load_framework(name))
    importer = import_maxtext if name == "maxtext" else import_torchtitan
    return importer(settings, on=on, model=model)


def guess_framework(words: Sequence[str]) -> str:
    """Whose configuration it is, by its first file.

    >>> guess_framework(["train_70b.sh", "NNODES=16"])
    'megatron'
    """
    for word in words:
        suffix = Path(word).suffix
        if suffix in _SUFFIXES:
            return _SUFFIXES[suffix]
        if suffix in (".yaml", ".yml"):
            return "megatron" if is_megatron_yaml(word) else "maxtext"
    raise UsageError(
        "whose configuration is it?", hint=f"add --from {' or --from '.join(READABLE)}"
    )
