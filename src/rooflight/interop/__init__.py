"""Plans in the words of other frameworks, and their configurations as parts of a plan.

from rooflight.interop.export import export_plan
from rooflight.interop.read import import_config
export_plan(plan, to="megatron").text
import_config(["train.sh"], on=parse_slice("h100:8x16")).layout
"""

from rooflight.interop.alternatives import row_of_plan
from rooflight.interop.export import export_plan
from rooflight.interop.framework import FRAMEWORKS, Export, Framework, Loss, load_framework
from rooflight.interop.imported import Imported
from rooflight.interop.kubernetes import export_manifest
from rooflight.interop.read import READABLE, guess_framework, import_config
from rooflight.interop.served_fleet import ServedFleet, read_fleet
from rooflight.interop.serving import (
    HTTP_SERVERS,
    SERVERS,
    ServedExport,
    Server,
    export_commands,
    servers,
)

__all__ = [
    "FRAMEWORKS",
    "HTTP_SERVERS",
    "READABLE",
    "SERVERS",
    "Export",
    "Framework",
    "Imported",
    "Loss",
    "ServedExport",
    "ServedFleet",
    "Server",
    "export_commands",
    "export_manifest",
    "export_plan",
    "guess_framework",
    "import_config",
    "load_framework",
    "read_fleet",
    "row_of_plan",
    "servers",
]
