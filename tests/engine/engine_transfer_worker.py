"""What carriers bring, within one process and from one that dies. Prints one JSON object.

Run as a process of its own: `python engine_transfer_worker.py`, or with `offer` as the one that
offers a value and waits to be killed.
"""

import json
import subprocess
import sys
import time
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rooflight.errors import ModelError
from rooflight.program.decode.pages import Values
from rooflight.program.shardings import device_mesh
from rooflight.serve.disaggregated.transfer import BytesCarrier, Carrier, JaxCarrier, Parcel

LARGE = 1 << 22
PATIENCE_S = 300.0  # for what must come


def some_values(size: int = 6) -> Values:
    mesh = device_mesh(cases.program_of(cases.TINY, "tp=Y", "Y=2", "v5e:1x2").constraints.axes)
    shape = NamedSharding(mesh, PartitionSpec(None, "Y"))
    found = jnp.arange(4 * size, dtype=jnp.float32).reshape(2, -1)
    parts = {"kv": found, "kv.scale": found[:, :4].astype(jnp.bfloat16)}
    return {name: jax.device_put(x, shape) for name, x in parts.items()}


def like(values: Values) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for n, x in values.items()
    }


def is_ready_within(receipt: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not receipt.is_ready() and time.monotonic() < end:
        time.sleep(0.005)
    return receipt.is_ready()


def trip(sender: Carrier, receiver: Carrier) -> dict[str, bool]:
    values = some_values()
    parcel = sender.send(values)
    receipt = receiver.receive(parcel, like(values))
    is_ready = is_ready_within(receipt, PATIENCE_S)
    got = receipt.values()
    sender.settle(parcel, is_taken=True)
    same = all((got[n] == x).all() and got[n].sharding == x.sharding for n, x in values.items())
    return {"ready": is_ready, "same": bool(same)}


def is_refused(parcel: Parcel) -> bool:
    try:
        BytesCarrier().receive(parcel, like(some_values()))
    except ModelError:
        return True
    return False


def dead_peer(carrier: JaxCarrier) -> str:
    """Of a process that is killed once it is being pulled from."""
    command = [sys.executable, __file__, "offer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as there:
        assert there.stdout is not None
        address, number = there.stdout.readline().split()
        receipt = carrier.receive(Parcel(address, int(number)), like(some_values(LARGE)))
        there.kill()
    try:
        if is_ready_within(receipt, 30):
            receipt.values()
            return "came"
    except ModelError:
        return "lost"
    return "not ready"


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def taken_back(carrier: JaxCarrier) -> bool:
    """Whether memory is what it was, after so much that nobody pulled."""
    before = resident()
    for _ in range(8):
        carrier.settle(carrier.send(some_values(LARGE)), is_taken=False)
        time.sleep(0.1)
    end = time.monotonic() + PATIENCE_S
    while not (is_back := resident() - before < 4 * 16 * LARGE) and time.monotonic() < end:
        time.sleep(0.1)
    return is_back


def main() -> dict[str, Any]:
    here, there = JaxCarrier("127.0.0.1"), JaxCarrier("127.0.0.1")
    right = BytesCarrier().send(some_values())
    ends = (dead_peer(here) for _ in range(10))
    never = here.receive(Parcel(there.address, 1), like(some_values()))
    return {
        "bytes": trip(BytesCarrier(), BytesCarrier()),
        "jax": trip(there, here),
        "wrong_size": is_refused(Parcel(parts=[right.parts[0][:-1], right.parts[1]])),
        "wrong_count": is_refused(Parcel(parts=right.parts[:1])),
        "never_offered": "ready" if is_ready_within(never, 0.5) else "not ready",
        # It may be killed before it is asked, or after all has come: then once more.
        "dead_peer": next((end for end in ends if end == "lost"), "never lost"),
        "taken_back": taken_back(there),
    }


def offer() -> None:
    carrier = JaxCarrier("127.0.0.1")
    parcel = carrier.send(some_values(LARGE))
    print(parcel.address, parcel.number, flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1:] == ["offer"]:
        offer()
    else:
        print(json.dumps(main()))
