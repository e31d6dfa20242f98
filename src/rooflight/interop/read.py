"""Another framework's configuration as the parts of a plan."""

from collections.abc import Sequence

from rooflight.errors import UnknownNameError
from rooflight.interop.framework import load_framework
from rooflight.interop.imported import Imported
from rooflight.interop.read_maxtext import import_maxtext
from rooflight.interop.read_torchtitan import import_torchtitan
from rooflight.interop.settings import read_settings
from rooflight.specs.model import ModelSpec
from rooflight.specs.slice import Slice

_IMPORTERS = {"maxtext": import_maxtext, "torchtitan": import_torchtitan}
READABLE = tuple(_IMPORTERS)


def import_config(
    words: Sequence[str], *, framework: str, on: Slice, model: ModelSpec | None = None
) -> Imported:
    """Reads files and `key=value` words of one of `READABLE`, as if run on a slice.

    >>> from rooflight.specs import parse_slice
    >>> words = ["model_name=llama3-8b", "ici_tensor_sequence_parallelism=4"]
    >>> found = import_config(words, framework="maxtext", on=parse_slice("v5e:4x4"))
    >>> found.layout, str(found.mesh), found.batch
    ('fsdp=X,sp=Y', 'X=4@x,Y=4@y', 192)
    """
    if framework not in _IMPORTERS:
        raise UnknownNameError("framework", framework, READABLE)
    settings = read_settings(words, load_framework(framework))
    return _IMPORTERS[framework](settings, on=on, model=model)
