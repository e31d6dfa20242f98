"""Megatron-LM: a plan as a launch script, and launch scripts as parts of a plan."""

from rooflight.interop.megatron.arguments import Arguments, is_megatron_yaml, read_arguments
from rooflight.interop.megatron.export import export_megatron
from rooflight.interop.megatron.read import import_megatron

__all__ = ["Arguments", "export_megatron", "import_megatron", "is_megatron_yaml", "read_arguments"]
