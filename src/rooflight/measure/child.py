"""One measurement in a process of its own, whose jax has the devices that are asked for.

`python -m rooflight.measure.child DEVICES module:function ARGUMENTS.json` prints what the function
returns, as JSON. Whoever wants a measurement calls `measure`.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any  # JSON

from rooflight.errors import MissingExtraError, UsageError

_LAST_CHARACTERS = 2000
_MOST_DEVICES = 64  # of one host: more only take turns


def measure(function: str, *, devices: int, **arguments: Any) -> Any:
    """Calls `module:function` of this package where jax has `devices` devices of the host."""
    if find_spec("jax") is None:
        raise MissingExtraError(
            "running a program needs jax, which is not installed",
            hint="pip install 'rooflight[program]'",
        )
    check_devices(devices)
    command = [sys.executable, "-m", "rooflight.measure.child", str(devices), function]
    done = subprocess.run(
        [*command, json.dumps(arguments)], capture_output=True, text=True, env=_environment(devices)
    )
    if done.returncode:
        raise UsageError(
            f"the measurement failed: {done.stderr.strip()[-_LAST_CHARACTERS:]}",
            hint="smaller sizes need less memory; `rooflight doctor` lists what is installed",
        )
    return json.loads(done.stdout)


def check_devices(devices: int) -> None:
    """Refuses a number that no host can be made into."""
    if not 1 <= devices <= _MOST_DEVICES:
        raise UsageError(
            f"{devices} devices cannot be made of one host",
            hint=f"ask for 1 to {_MOST_DEVICES}, such as this-host:8",
        )


def _environment(devices: int) -> dict[str, str]:
    """Collectives come in program order, as on a chip, not as soon as their operands are there."""
    flags = (
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    )
    return dict(os.environ) | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


def main(function: str, arguments: str) -> None:
    """Prints what a function of this package returns."""
    module, _, name = function.partition(":")
    found = getattr(import_module(f"rooflight.measure.{module}"), name)(**json.loads(arguments))
    print(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[2:])
