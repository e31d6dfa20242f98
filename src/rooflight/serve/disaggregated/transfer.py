# pyright: reportAttributeAccessIssue=false
# jax annotates its own functions only in part.
"""How the KV of some layers gets from one process to another: a `Carrier` at either end.

    send(values) -> Parcel -> (to the other process) -> receive(parcel, like) -> Receipt -> values

`BytesCarrier` puts the numbers themselves into the parcel, which goes wherever the rest of the talk
between the two goes. `JaxCarrier` puts in a number under which the other one pulls them, from
device to device, with `jax.experimental.transfer`.

What that module does when a peer fails was tried: a peer that dies ends a pull with an error; one
that hangs, or that never offered the number, leaves it open for ever, whatever `timeout` says. So a
pull is only ever asked whether it is done, and given up by letting go of it. A value that nobody
pulls is kept for ever, so its owner pulls it back. And the port that it opens takes no key: four
zero bytes sent to it end the process. It is for networks in which nobody would.
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.experimental import transfer

from rooflight.errors import ModelError
from rooflight.program.decode.pages import Values
from rooflight.serve.engine.pages import Like


class Parcel(NamedTuple):
    """What is sent for one group of layers."""

    address: str = ""  # from which, and
    number: int = 0  # under which the values are pulled
    parts: Sequence[bytes] = ()  # or the values themselves, by name


class Receipt(Protocol):
    """Values that are on their way."""

    def is_ready(self) -> bool:
        """Whether `values` returns, or raises, without waiting."""
        ...

    def values(self) -> Values: ...


class Carrier(Protocol):
    """One end of the way; both ends must be of one kind."""

    def send(self, values: Values) -> Parcel:
        """Waits for the device."""
        ...

    def settle(self, parcel: Parcel, *, is_taken: bool) -> None:
        """The other end has it, or will never take it: nothing of it stays here."""
        ...

    def receive(self, parcel: Parcel, like: Like) -> Receipt: ...


class _Arrived(NamedTuple):
    arrays: Values

    def is_ready(self) -> bool:
        return all(x.is_ready() for x in self.arrays.values())

    def values(self) -> Values:
        """Raises what went wrong, which must never reach the cache."""
        try:
            return jax.block_until_ready(self.arrays)
        except jax.errors.JaxRuntimeError as error:
            raise ModelError(f"values were lost on their way: {error}") from None


class BytesCarrier:
    """Values by copy: no port, and nothing to settle."""

    def send(self, values: Values) -> Parcel:
        return Parcel(parts=[np.asarray(values[name]).tobytes() for name in sorted(values)])

    def settle(self, parcel: Parcel, *, is_taken: bool) -> None:
        pass

    def receive(self, parcel: Parcel, like: Like) -> Receipt:
        found: Values = {}
        if len(parcel.parts) != len(like):
            raise ModelError(f"{len(parcel.parts)} arrays came, not {len(like)}")
        for part, name in zip(parcel.parts, sorted(like), strict=True):
            shape = like[name]
            array = np.frombuffer(part, np.uint8)
            if array.nbytes != shape.size * shape.dtype.itemsize:
                raise ModelError(f"{array.nbytes} bytes came for {name}, which has another size")
            whole = array.view(shape.dtype).reshape(shape.shape)
            found[name] = jax.device_put(whole, shape.sharding)
        return _Arrived(found)


class JaxCarrier:
    """Values pulled from device to device; opens a port at `host` that takes no key."""

    def __init__(self, host: str) -> None:
        client = jax.devices()[0].client
        self._server = transfer.start_transfer_server(client, f"{host}:0", [f"{host}:0"])
        self.address: str = self._server.address()
        self._offered: dict[int, Like] = {}
        self._peers: dict[str, transfer.TransferConnection] = {}

    def send(self, values: Values) -> Parcel:
        number = secrets.randbits(62)  # nobody guesses it, and it is never used again
        jax.block_until_ready(values)
        self._offered[number] = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            for name, x in values.items()
        }
        self._server.await_pull(number, values)
        return Parcel(self.address, number)

    def settle(self, parcel: Parcel, *, is_taken: bool) -> None:
        like = self._offered.pop(parcel.number)
        if not is_taken:
            self._peer(self.address).pull(parcel.number, like)

    def receive(self, parcel: Parcel, like: Like) -> Receipt:
        return _Arrived(self._peer(parcel.address).pull(parcel.number, like))

    def _peer(self, address: str) -> transfer.TransferConnection:
        if address not in self._peers:
            self._peers[address] = self._server.connect(address)
        return self._peers[address]
