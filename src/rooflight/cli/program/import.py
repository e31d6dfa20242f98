"""`rooflight import`: another framework's configuration as the parts of a plan."""

import shlex
from dataclasses import asdict

from rooflight.cli.flags import add_choice, add_on
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.hardware.slice import parse_slice
from rooflight.interop.imported import Imported
from rooflight.interop.read import READABLE, import_config
from rooflight.models.presets import load_model, model_names
from rooflight.ui.text.table import table
from rooflight.units import format_count

FITTED = ("torchtitan", "megatron")  # whose copies the verb fit knows
HELP = "a MaxText, torchtitan or Megatron-LM configuration as layout, mesh and batch"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "config",
        nargs="+",
        help="YAML (MaxText), TOML (torchtitan), a launch script or YAML (Megatron-LM), and"
        " key=value words; scripts are read and never run",
    )
    add_choice(
        parser,
        "--from",
        READABLE,
        what="framework",
        help="whose they are, where the name of a file does not say",
    )
    add_on(parser)
    parser.add_argument("--model", help="a preset or a config.json, where theirs is not known")
    parser.set_examples(
        "rooflight import model_name=llama3-8b ici_tensor_sequence_parallelism=4"
        " per_device_batch_size=1 --from maxtext --on v5e:4x4",
        "rooflight import model.flavor=70B parallelism.tensor_parallel_degree=8"
        " activation_checkpoint.mode=full --from torchtitan --on h100:8x16",
        "rooflight import tensor-model-parallel-size=8 sequence-parallel=true bf16=true"
        " seq-length=4096 micro-batch-size=1 global-batch-size=512 --from megatron"
        " --model llama3-70b --on h100:8x16",
    )


def run(args: Namespace) -> int:
    framework: str | None = getattr(args, "from")
    model = load_model(args.model) if args.model else None
    found = import_config(args.config, framework=framework, on=parse_slice(args.on), model=model)
    if args.json:
        print_json("import", _document(found))
    else:
        show("".join(c if c.isprintable() or c == "\n" else "?" for c in _text(found)))
        name = found.model.name
        if name in model_names() and load_model(name) == found.model:
            suggest(_fit(found))
    return 0 if found.is_faithful else 1


def _fields(found: Imported) -> dict[str, object]:
    return {
        "model": found.model.name,
        "on": str(found.on),
        "layout": found.layout,
        "mesh": str(found.mesh),
        **picked(found, "batch seq dtype recipe remat zero stages schedule microbatches virtual"),
    }


def _document(found: Imported) -> dict[str, object]:
    return {
        "framework": found.framework.name,
        "commit": found.framework.commit,
        **_fields(found),
        "losses": [asdict(loss) for loss in found.losses],
        "unread": list(found.unread),
    }


def _text(found: Imported) -> str:
    tokens = format_count(found.batch * found.seq)
    rows = [[key, str(value)] for key, value in _fields(found).items() if value is not None]
    parts = [
        f"{found.model.title} on {found.on}: {found.layout} with {found.mesh},"
        f" {tokens} tokens per step",
        f"keys and defaults of {found.framework.reference}\n",
        table(("part", "value"), rows, align="ll"),
    ]
    for heading, is_material in (("not the same here:", True), ("noted:", False)):
        said = [loss for loss in found.losses if loss.is_material is is_material]
        parts += [f"\n{heading}"] if said else []
        parts += [f"  {loss.what}: {loss.because}" for loss in said]
    if found.unread:
        parts.append(f"\nnot read: {', '.join(found.unread)}")
    return "\n".join(parts)


def _fit(found: Imported) -> str:
    where = f"--layout {found.layout} --on {shlex.quote(str(found.on))} --mesh {found.mesh}"
    sizes = f"--batch {found.batch * found.seq} --seq {found.seq}"
    how = f"--recipe {found.recipe} --remat {found.remat} --zero {found.zero}"
    words = [f"rooflight fit train {found.model.name} {where} {sizes} {how}"]
    words += [f"--microbatches {found.microbatches}"] if found.microbatches > 1 else []
    words += [f"--schedule {found.schedule}"] if found.schedule else []
    words += [f"--virtual {found.virtual}"] if found.virtual > 1 else []
    words += [f"--framework {found.framework.name}"] if found.framework.name in FITTED else []
    return " ".join(words)
