"""The JSON document of `rooflight plan serve`: all that an engine's flags can be written from."""

from dataclasses import asdict

from rooflight.cli.plan_serve_page import FleetPage, verdict
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.questions import saving
from rooflight.plan.serving.simulate.quantiles import Quantiles


def document(page: FleetPage) -> dict[str, object]:
    """The fleet, the best of every chip, and the answers to what else was asked."""
    fields: dict[str, object] = {
        "question": "serve",
        "model": page.model,
        **_demand(page.plan.question.demand),
        "fleet": _fleet(page.plan.best) if page.plan.best else None,
        "chips": {
            chip: _fleet(search.best) if search.best else None
            for chip, search in page.plan.found.items()
        },
        "verdicts": {
            chip: verdict(search.best, page.plan.best) for chip, search in page.plan.found.items()
        },
        "ways": sum(search.num_ways for search in page.plan.found.values()),
        "simulations": sum(search.num_simulations for search in page.plan.found.values()),
    }
    if page.verdict:
        fields["disaggregate"] = {"is_faster": page.verdict.is_faster, **asdict(page.verdict)}
    if page.doubled:
        fields["doubled"] = {d.what: _fleet(d.fleet) if d.fleet else None for d in page.doubled}
    if page.why_not:
        asked = page.why_not
        fields["why_not"] = {
            "layout": str(asked.layout),
            "because": asked.because,
            "fleet": _fleet(asked.fleet) if asked.fleet else None,
        }
    if page.hours:
        fields["hours"] = [
            {
                "rate": hour.rate,
                "replicas": hour.fleet.replicas,
                "dollars_per_hour": hour.fleet.dollars_per_hour,
            }
            for hour in page.hours
        ]
        fields["saving"] = saving(page.hours)
    return fields


def _demand(demand: Demand) -> dict[str, object]:
    return {
        "rate": demand.rate,
        "isl": str(demand.input),
        "osl": str(demand.output),
        "hit_rate": demand.hit_rate,
        "percentile": demand.percentile,
        **demand.slo.document,
    }


def _fleet(fleet: Fleet) -> dict[str, object]:
    way, found = fleet.way, fleet.simulation
    setup, calibration, limits = way.setup, way.calibration, way.limits
    return {
        "on": str(setup.on),
        "layout": str(setup.layout),
        "dtypes": str(setup.precision),
        "policy": way.policy,
        "replicas": fleet.replicas,
        "prefill_replicas": fleet.prefill_replicas,
        "spare": fleet.spare,
        "chips": fleet.num_chips,
        "max_rows": limits.max_rows,
        "max_step_tokens": limits.max_step_tokens,
        "block_tokens": limits.block_tokens,
        "pool_tokens": limits.pool_tokens,
        "longest_request": fleet.demand.work().longest,
        "dollars_per_hour": fleet.dollars_per_hour,
        "dollars_per_million": fleet.dollars_per_million,
        "dollars_per_million_in": fleet.dollars_per_million_in,
        "dollars_per_million_cached": fleet.dollars_per_million_cached,
        "dollars_per_million_out": fleet.dollars_per_million_out,
        "least_replicas": way.least_replicas,
        "bound": asdict(way.bound),
        "physics_replicas": fleet.physics_replicas,
        "paid": fleet.paid,
        "calibration": f"{calibration.engine} on {calibration.chip}" if calibration else None,
        "spread": calibration.spread if calibration else None,
        "ttft_spread": way.first_token.spread if way.first_token else None,
        "unseen": list(way.unseen),
        "simulated": {
            "replicas": found.replicas,
            "rate": fleet.simulated_rate,
            "requests": found.num_requests,
            "good_share": found.good_share,
            "busy_share": found.busy_share,
            "mean_rows": found.mean_rows,
            "floor": asdict(found.floor),
            "ttft": _quantiles(found.ttft),
            "tpot": _quantiles(found.tpot),
            "e2e": _quantiles(found.e2e),
        },
    }


def _quantiles(times: Quantiles | None) -> dict[str, float] | None:
    if times is None:
        return None
    return {"mean_s": times.mean, "p50_s": times.p50, "p95_s": times.p95, "p99_s": times.p99}
