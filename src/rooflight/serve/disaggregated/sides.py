"""Prefill and generate as two servers: which side one is on, and what it has for that."""

from dataclasses import dataclass

from rooflight.errors import ModelError
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.disaggregated.prefill_client import PrefillClient
from rooflight.serve.disaggregated.route import PrefillServer
from rooflight.serve.disaggregated.transfer import BytesCarrier, Carrier, JaxCarrier
from rooflight.serve.engine.run import Engine
from rooflight.serve.engine.runner import Runner
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.exchange import Exchange
from rooflight.serve.server.logs import Log


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """One of two servers that share the work."""

    mark: str  # of the model, which both must have: see `fingerprint`
    prefill_from: str | None  # the address of the other one; None on the side that prefills
    key: str | None  # that it is shown
    timeout_s: float  # for a prompt, and then for its KV, before it is computed here
    transfer: str  # bytes or jax
    host: str  # where jax listens

    @property
    def carrier(self) -> Carrier:
        return JaxCarrier(self.host) if self.transfer == "jax" else BytesCarrier()


def make_side(
    peer: PeerConfig, engine: Engine, runner: Runner, exchange: Exchange, bounds: Bounds, log: Log
) -> PrefillServer | PrefillClient:
    """What the server has beside its engine, which must be one for that."""
    if not isinstance(engine, DisaggregatedEngine):
        raise ModelError("this engine neither hands over blocks nor takes them")
    mark, url = peer.mark, peer.prefill_from
    if url is None:
        return PrefillServer(engine, runner, exchange, peer.carrier, mark)
    return PrefillClient(
        engine,
        runner,
        peer.carrier,
        log,
        url=url,
        key=peer.key,
        mark=mark,
        timeout_s=peer.timeout_s,
        bounds=bounds,
    )
