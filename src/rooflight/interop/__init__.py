"""Plans in the words of other frameworks, and their configurations as parts of a plan.

from rooflight.interop import export_plan
export_plan(plan, to="megatron").text
"""

from rooflight.interop.export import export_plan
from rooflight.interop.framework import FRAMEWORKS, Export, Framework, Loss, load_framework
from rooflight.interop.imported import Imported
from rooflight.interop.read import READABLE, import_config

__all__ = [
    "FRAMEWORKS",
    "READABLE",
    "Export",
    "Framework",
    "Imported",
    "Loss",
    "export_plan",
    "import_config",
    "load_framework",
]
