"""What every framework is told beside the degrees: what is kept, in which dtype, split how."""

from rooflight.interop.framework import FrameworkSpec, Loss, Settings, settings_of
from rooflight.interop.roles import Roles
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan, plan_hash


def policies(framework: FrameworkSpec, plan: Plan, roles: Roles) -> tuple[Settings, list[Loss]]:
    """Settings of the remat policy, the recipe, the dtype, ZeRO and the pipeline's schedule."""
    asked = [("remats", plan.remat, "remat"), ("recipes", plan.recipe, "recipe")]
    asked += [("dtypes", plan.dtype, "dtype")]
    if roles.serving("dp", "cp", "ulysses"):  # else every weight is split already
        asked += [("zeros", str(plan.zero), "zero stage")]
    if plan.schedule is not None:
        asked += [("schedules", plan.schedule, "schedule")]
    settings: Settings = {}
    losses = _hardware(framework, roles)
    for table, name, what in asked:
        found, lost = settings_of(framework, table, name, what=what)
        settings |= found
        losses += lost
    return settings, losses


def _hardware(framework: FrameworkSpec, roles: Roles) -> list[Loss]:
    where = roles.mesh.slice
    if framework.has_tpus or not where.chip.torus:
        return []
    return [Loss(f"slice {where}", f"{framework.title} runs on GPUs")]


def their_model(framework: FrameworkSpec, model: ModelSpec) -> str | None:
    """The framework's name of a model, if it is one of ours, unchanged."""
    known = model.name in framework.models and model.name in model_names()
    return framework.models[model.name] if known and load_model(model.name) == model else None


def title(plan: Plan) -> str:
    """One line that says which plan a file was made from."""
    where = f"{plan.layout} with {plan.mesh}"
    return f"rooflight plan {plan_hash(plan)}: {plan.model.name} on {plan.slice}, {where}"
