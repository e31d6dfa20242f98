# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""An engine from a Hugging Face folder: config.json and safetensors, no pickle, no remote code."""

from pathlib import Path

from rooflight.dtypes import DTYPES
from rooflight.engine.config import EngineConfig
from rooflight.engine.engine import Engine
from rooflight.graph import dim_sizes, model_graph
from rooflight.graph.layout import parse_layout
from rooflight.plan.pins import pins_of
from rooflight.program.hf_import import import_huggingface
from rooflight.program.model import Program
from rooflight.program.params import abstract_params
from rooflight.program.shardings import device_mesh
from rooflight.specs import parse_mesh, read_hf_config


def load_engine(folder: str | Path, config: EngineConfig, *, dtype: str = "f32") -> Engine:
    """The model of a folder on one device, its weights and products in `dtype`."""
    model = read_hf_config(folder)
    graph, mesh = model_graph(model), parse_mesh("X=1", on="v5e:1x1")
    dims = dim_sizes(graph, batch=config.max_rows, seq=1)
    pins = pins_of(graph, parse_layout("dp=X"), mesh=mesh, dims=dims, dtype=DTYPES["bf16"])
    program = Program(model, pins, weights=dtype, compute=dtype)
    target = abstract_params(program.specs, pins, device_mesh(pins.axes))
    return Engine(program, import_huggingface(folder, program.specs, target).params, config)
