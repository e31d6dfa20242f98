"""One measurement in a process of its own, whose jax has the devices that are asked for.

`python -m rooflight.measure.microbench.child DEVICES module:function ARGUMENTS.json` prints what
the function returns, as JSON. `measure` is what callers call; `measure_between` does
it on several processes that `jax.distributed` joins, over the loopback.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any  # JSON

from rooflight.errors import MissingExtraError, UsageError, install

_LAST_CHARACTERS = 2000
_MOST_DEVICES = 64  # of one host: more only take turns


def measure(function: str, *, devices: int, **arguments: Any) -> Any:
    """Calls `module:function` of this package where jax has `devices` devices of the host."""
    return measure_between(function, processes=1, devices=devices, **arguments)


def measure_between(function: str, *, processes: int, devices: int, **arguments: Any) -> Any:
    """The same on several processes with `devices` each; what the first of them returns."""
    if find_spec("jax") is None:
        raise MissingExtraError(
            "running a program needs jax, which is not installed", hint=install("program")
        )
    check_devices(processes * devices)
    command = [sys.executable, "-m", "rooflight.measure.microbench.child", str(devices), function]
    command.append(json.dumps(arguments))
    joins = [()] if processes == 1 else _joins(processes)
    env = _environment(devices)
    running = [
        subprocess.Popen(
            [*command, *join], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        for join in joins
    ]
    return _first_answer(running)


def _joins(processes: int) -> list[tuple[str, ...]]:
    """For each process where the first one listens, how many there are, and which it is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    return [(address, str(processes), str(index)) for index in range(processes)]


def _first_answer(running: list["subprocess.Popen[str]"]) -> Any:
    """Peers of a process that died only wait, so all are ended with the first that fails."""
    try:
        while any(child.poll() is None for child in running):
            if any(child.returncode for child in running):
                break
            with suppress(subprocess.TimeoutExpired):
                next(c for c in running if c.returncode is None).communicate(timeout=0.1)
    finally:
        for child in running:
            if child.poll() is None:
                child.kill()
    said = [child.communicate() for child in running]
    failed = [err for child, (_, err) in zip(running, said, strict=True) if child.returncode]
    if failed:
        raise UsageError(
            f"the measurement failed: {failed[0].strip()[-_LAST_CHARACTERS:]}",
            hint="smaller sizes need less memory; `rooflight doctor` lists what is installed",
        )
    return json.loads(said[0][0].splitlines()[-1])  # libraries talk on stdout, too


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


def main(function: str, arguments: str, *join: str) -> None:
    """Prints what a function of this package returns; `join` is an address, a count, an index."""
    if join:
        import jax

        address, count, index = join
        own = address if index == "0" else None  # else it listens on every interface
        jax.distributed.initialize(address, int(count), int(index), coordinator_bind_address=own)
    module, _, name = function.partition(":")
    found = getattr(import_module(f"{__package__}.{module}"), name)(**json.loads(arguments))
    print(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[2:])
