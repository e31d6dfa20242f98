# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# The packages are installed by the full-size test alone, in an environment of their own.
"""Programs out of packages that people install: their own models, steps and kernels as they are.

Only sizes, arguments and where they lie are ours; a builder says so where it says more.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
BATCH, LENGTH = 16, 1024


def _like(mesh: Mesh, shape: tuple[int, ...], *axes: Any, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))


def _tunix_step(mesh: Mesh, model_of: Any, donated: tuple[str, ...]) -> Built:
    """The training step of `PeftTrainer`, which jits it with the optimizer donated."""
    import optax
    from flax import nnx
    from tunix.sft import peft_trainer

    def start() -> tuple[Any, Any]:
        model = model_of(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-5), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(start))
    placed = jax.tree.map(
        lambda x, spec: _like(mesh, x.shape, *spec, dtype=x.dtype),
        state,
        nnx.get_partition_spec(state),
    )
    model, optimizer = nnx.merge(graph, placed)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        trainer = object.__new__(peft_trainer.PeftTrainer)
        trainer.gen_model_input_fn = lambda batch: batch
        trainer.loss_fn = peft_trainer._default_loss_fn
        trainer._lora_enabled = trainer._has_aux = False
        return peft_trainer.PeftTrainer._train_step(trainer, model, optimizer, batch)

    rows: dict[str, Any] = {
        name: _like(mesh, (BATCH, LENGTH), "fsdp", dtype=jnp.int32)
        for name in ("input_tokens", "input_mask", "positions")
    }
    rows["attention_mask"] = _like(mesh, (BATCH, LENGTH, LENGTH), "fsdp", dtype=jnp.bool_)
    return nnx.jit(step, donate_argnames=donated), (model, optimizer, rows)


AS_IT_IS, MENDED = ("optimizer",), ("optimizer", "model")


def tunix_llama(mesh: Mesh, *, donated: tuple[str, ...] = MENDED) -> Built:
    """Llama 3.2 1B of tunix, two layers."""
    from tunix.models.llama3 import model as llama

    config = replace(llama.ModelConfig.llama3p2_1b(), num_layers=2)
    return _tunix_step(mesh, lambda rngs: llama.Llama3(config, rngs=rngs), donated)


def tunix_llama_as_it_is(mesh: Mesh) -> Built:
    """The weights are an argument that is returned updated, and kept."""
    return tunix_llama(mesh, donated=AS_IT_IS)


def tunix_qwen3(mesh: Mesh) -> Built:
    """Qwen3 4B of tunix, two layers, recomputed."""
    from tunix.models.qwen3 import model as qwen

    config = replace(
        qwen.ModelConfig.qwen3_4b(), num_layers=2, remat_config=qwen.RematConfig.DECODER
    )
    return _tunix_step(mesh, lambda rngs: qwen.Qwen3(config, rngs=rngs), MENDED)


def tunix_experts(mesh: Mesh) -> Built:
    """Qwen3 30B A3B of tunix, two layers: experts sorted, exchanged and multiplied by groups."""
    from tunix.models.qwen3 import model as qwen

    config = replace(qwen.ModelConfig.qwen3_30b_a3b(), num_layers=2, dtype=jnp.bfloat16)
    return _tunix_step(mesh, lambda rngs: qwen.Qwen3(config, rngs=rngs), MENDED)


def tunix_gemma3(mesh: Mesh) -> Built:
    """Gemma 3 1B of tunix, six layers: five of a window, one of all."""
    from tunix.models.gemma3 import model as gemma

    config = replace(gemma.ModelConfig.gemma3_1b_pt(), num_layers=6)
    return _tunix_step(mesh, lambda rngs: gemma.Gemma3(config, rngs=rngs), MENDED)


def tokamax_attention(mesh: Mesh) -> Built:
    """Flash attention and its gradients, batch over fsdp and heads over tp, in a shard_map."""
    import tokamax

    def attend(q: Any, k: Any, v: Any) -> Any:
        return tokamax.dot_product_attention(q, k, v, is_causal=True, implementation="mosaic")

    rows = P("fsdp", None, "tp")
    own = jax.shard_map(attend, mesh=mesh, in_specs=(rows,) * 3, out_specs=rows, check_vma=False)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(own(q, k, v).astype(jnp.float32))

    heads = _like(mesh, (BATCH, 2048, 16, 128), *rows)
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))), (heads,) * 3


def tokamax_experts(mesh: Mesh) -> Built:
    """Grouped matmuls of tokamax over the experts of a device."""
    import tokamax

    def multiply(x: Any, up: Any, down: Any, sizes: Any) -> Any:
        hidden = tokamax.ragged_dot(x[0], up, sizes[0], implementation="mosaic")
        return tokamax.ragged_dot(jax.nn.silu(hidden), down, sizes[0], implementation="mosaic")[
            None
        ]

    one = P("fsdp")
    specs = (P(("fsdp", "tp")), one, one, P(("fsdp", "tp")))
    own = jax.shard_map(multiply, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
    weights = _like(mesh, (64, 2048, 1024), "fsdp"), _like(mesh, (64, 1024, 2048), "fsdp")
    sizes = _like(mesh, (8, 32), ("fsdp", "tp"), dtype=jnp.int32)
    return jax.jit(own), (_like(mesh, (8, 8192, 2048), ("fsdp", "tp")), *weights, sizes)


def tokamax_loss(mesh: Mesh) -> Built:
    """The loss of a vocabulary in chunks, rows over all devices, and its gradients."""
    import tokamax

    def rows_of(x: Any, labels: Any, head: Any) -> Any:
        loss = tokamax.linear_softmax_cross_entropy_loss(
            x, labels, head, reduction="sum", implementation="chunked_xla"
        )
        return jax.lax.psum(loss, ("fsdp", "tp"))

    every = P(("fsdp", "tp"))
    own = jax.shard_map(
        rows_of, mesh=mesh, in_specs=(every, every, P()), out_specs=P(), check_vma=False
    )
    x, labels = _like(mesh, (65536, 2048), *every), _like(mesh, (65536,), *every, dtype=jnp.int32)
    return jax.jit(own), (x, labels, _like(mesh, (2048, 32768)))


def maxtext_llama(mesh: Mesh, model: str = "llama3-8b", **more: object) -> Built:
    """MaxText's train step as its `train_compile` builds it, two layers, on a mesh of its own."""
    import jax.experimental.xla_metadata as metadata

    metadata.__dict__.setdefault("must_fuse_call", None)  # newer jax has it; not called here
    from flax.linen import logical_axis_rules
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    settings = {
        "compile_topology": "v5e-8",
        "compile_topology_num_slices": 1,
        "model_name": model,
        "override_model_config": True,
        "base_num_decoder_layers": 2,
        "remat_policy": "full",
        "per_device_batch_size": 2,
        "max_target_length": LENGTH,
        "attention": "flash",
        "ici_fsdp_parallelism": 2,
        "ici_tensor_parallelism": 4,
        "dataset_type": "synthetic",
        "enable_checkpointing": False,
        "use_iota_embed": True,
        **more,
    }
    own = [f"{name}={value}".replace("=True", "=true") for name, value in settings.items()]
    file = f"{train_compile.__file__.partition('trainers')[0]}configs/base.yml"
    config = pyconfig.initialize(["", file, *own])
    devices = maxtext_utils.create_device_mesh(config, list(mesh.devices.flat))
    theirs = Mesh(devices, config.mesh_axes)
    jax.set_mesh(theirs)
    args, _, placed, _, graph = train_compile.get_shaped_inputs(theirs, config)
    params, placed = sharding.maybe_update_params_sharding_with_opt(config, placed)
    data = sharding.get_input_data_sharding(config, theirs)
    step, taken, given, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step, data, placed, graph, config, params
    )

    def with_rules(*arguments: Any) -> Any:
        with logical_axis_rules(config.logical_axis_rules):
            return step(*arguments)

    jitted = jax.jit(
        with_rules,
        in_shardings=taken,
        out_shardings=given,
        static_argnums=static,
        donate_argnums=donated,
    )
    return jitted, args
