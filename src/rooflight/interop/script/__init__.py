"""Shell scripts, read and never run: what they set, and the programs they would start."""

from rooflight.interop.script.expand import UNKNOWN, Variables
from rooflight.interop.script.run import Script, read_script

__all__ = ["UNKNOWN", "Script", "Variables", "read_script"]
