"""The side that prefills: a prompt in, its token out, then its KV while a lease lasts.

The lease ends when the talk ends, when nothing is read for a while, and at the latest after the
time that was asked for; blocks that were not read by then are free again, whatever has become of
the other side. As long as it lasts its prompt waits for its key, and its tokens are spent.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from aiohttp import WSMsgType, web

from rooflight.batching.request import Admission
from rooflight.errors import UsageError
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.disaggregated.messages import (
    Order,
    read_order,
    read_step,
    write_first,
    write_parcel,
)
from rooflight.serve.disaggregated.transfer import Carrier, Parcel
from rooflight.serve.engine.request import Delta
from rooflight.serve.engine.runner import Runner
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.engine_calls import call
from rooflight.serve.server.exchange import Exchange, Inbox
from rooflight.serve.server.problem import ApiError, invalid, overloaded

Charge = Callable[[int], AbstractContextManager[None]]  # of prompt tokens, or an `ApiError`
_ORDER_S = 10.0  # to say what is wanted, once connected
_READ_S = 10.0  # to read the next layers


class PrefillServer:
    """Serves the talks of one server; each is one prompt."""

    def __init__(
        self,
        engine: DisaggregatedEngine,
        runner: Runner,
        exchange: Exchange,
        carrier: Carrier,
        mark: str,
    ) -> None:
        self._engine, self._runner, self._exchange = engine, runner, exchange
        self._carrier, self._mark = carrier, mark

    def gauges(self) -> dict[str, Callable[[], float]]:
        return {"leases": lambda: len(self._engine.scheduler.leases)}

    async def talk(
        self, request: web.Request, bounds: Bounds, id: int, charge: Charge
    ) -> web.StreamResponse:
        """From the order to the end of its lease."""
        socket = web.WebSocketResponse(max_msg_size=bounds.max_body_bytes, compress=False)
        await socket.prepare(request)
        try:
            order = await self._order(socket, bounds, id)
            with charge(len(order.job.prompt)):
                await self._serve(socket, order)
        except ApiError as problem:
            await socket.send_json(problem.body)
        except TimeoutError:
            pass  # the lease is over: what is asked for now is too late
        await socket.close()
        return socket

    async def _order(self, socket: web.WebSocketResponse, bounds: Bounds, id: int) -> Order:
        async with asyncio.timeout(_ORDER_S):
            message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            raise invalid("order", "no text")
        order = read_order(str(message.data), bounds, id)
        if order.fingerprint != self._mark:
            raise ApiError(409, "other_model", "this server has another model, dtype or block size")
        return order

    async def _serve(self, socket: web.WebSocketResponse, order: Order) -> None:
        id, inbox = order.job.id, Inbox()
        parcels: dict[int, Parcel] = {}
        self._exchange.open(id, inbox)
        try:
            async with asyncio.timeout(order.lease_s):  # the other side waits no longer
                delta = await self._prefill(order, inbox)
            async with asyncio.timeout(order.lease_s):
                await socket.send_str(write_first(delta, self._engine.num_groups))
                await self._hand_over(socket, id, parcels)
        finally:
            self._exchange.close(id)
            self._runner.post(lambda: self._free(id))
            for parcel in parcels.values():
                self._carrier.settle(parcel, is_taken=False)

    async def _prefill(self, order: Order, inbox: Inbox) -> Delta:
        try:
            found = self._runner.submit(order.job, self._engine.prefill)
        except UsageError as error:
            raise invalid("order", str(error)) from None
        if found is not Admission.ADMITTED:
            raise overloaded(f"not admitted: {found}", retry_after=1)
        delta = (await inbox.take())[0]
        if not delta.tokens:
            raise ApiError(500, "engine_failed", "the engine could not compute this prompt")
        return delta

    async def _hand_over(
        self, socket: web.WebSocketResponse, id: int, parcels: dict[int, Parcel]
    ) -> None:
        """A group of layers for each message, until the other side has all of them."""
        while True:
            async with asyncio.timeout(_READ_S):
                message = await socket.receive()
            if message.type is not WSMsgType.TEXT:
                return
            read, taken = read_step(str(message.data), self._engine.num_groups)
            if taken is not None and taken in parcels:
                self._carrier.settle(parcels.pop(taken), is_taken=True)
            if read is not None and read not in parcels:
                parcels[read] = parcel = await self._parcel(id, read)
                await socket.send_str(write_parcel(read, parcel))
                for part in parcel.parts:
                    await socket.send_bytes(part)

    async def _parcel(self, id: int, group: int) -> Parcel:
        values = await call(self._runner, lambda: self._engine.read(id, group))
        if values is None:
            raise ApiError(410, "lease_ended", "these blocks are somebody else's now")
        return await asyncio.get_running_loop().run_in_executor(None, self._carrier.send, values)

    def _free(self, id: int) -> Sequence[Delta]:
        self._engine.free(id)
        return ()
