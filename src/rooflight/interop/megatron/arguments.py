"""`Arguments`: what a launch script, a YAML file and words say to Megatron-LM, by name.

In: `.sh` files, whose variables are followed and whose commands are not run; YAML files of
Megatron-LM's tests, of Megatron-Bridge and NeMo; then `key=value` words. Out: one value per flag.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflight.errors import ParseError, UsageError
from rooflight.interop.framework import FrameworkSpec, Loss, load_framework
from rooflight.interop.script.expand import UNKNOWN
from rooflight.interop.script.run import Script, read_script
from rooflight.interop.settings import Flat, read_nested_yaml, read_text, scalar

_WORD = re.compile(r"-{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_TESTS = "MODEL_ARGS."
_GPUS = ("nproc-per-node", "gpus-per-node", "ntasks-per-node", "devices")
_NODES = ("nnodes", "nodes", "num-nodes", "N")
_GPU_VARIABLES = ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE")
_NODE_VARIABLES = ("NNODES", "NUM_NODES", "NODES")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Flags without their dashes; a flag alone is True."""

    settings: Flat
    names: Mapping[str, str]  # of each setting as it was written
    gpus: int | None = None  # of a node, where that is said
    nodes: int | None = None
    losses: tuple[Loss, ...] = ()


def read_arguments(words: Sequence[str]) -> Arguments:
    """Files and words in order, what comes later wins; `NAME=value` sets a variable of scripts."""
    framework = load_framework("megatron")
    pairs = [_WORD.fullmatch(word) for word in words]
    variables = {p[1]: p[2] for p in pairs if p and _VARIABLE.fullmatch(p[1])}
    found = Arguments({}, {})
    for word, pair in zip(words, pairs, strict=True):
        if pair is None:
            found = _joined(found, _file(word, framework, variables))
        elif pair[1] not in variables:
            given = _named(framework, {pair[1]: scalar(pair[2].strip())})
            found = _joined(found, given)
    return found


def _joined(one: Arguments, other: Arguments) -> Arguments:
    return Arguments(
        {k: v for k, v in (one.settings | other.settings).items() if v not in (False, None)},
        {**one.names, **other.names},
        other.gpus or one.gpus,
        other.nodes or one.nodes,
        (*one.losses, *other.losses),
    )


def _file(path: str, framework: FrameworkSpec, variables: Mapping[str, str]) -> Arguments:
    text = read_text(path, framework)
    if path.endswith((".yaml", ".yml")):
        flat = read_nested_yaml(text)
        tested = {k.removeprefix(_TESTS): v for k, v in flat.items() if k.startswith(_TESTS)}
        return _named(framework, tested or flat)
    return _script(framework, text, variables)


def is_megatron_yaml(path: str) -> bool:
    """Whether a YAML file names a setting of Megatron-LM below a section."""
    framework = load_framework("megatron")
    try:
        keys = read_nested_yaml(read_text(path, framework))
    except ParseError:
        return False
    return any("." in key and flag_of(key) in framework.defaults for key in keys)


def _named(framework: FrameworkSpec, flat: Mapping[str, object]) -> Arguments:
    """By the last part of each key; two that would say different things are refused."""
    settings: Flat = {}
    names: dict[str, str] = {}
    for written, value in flat.items():
        key = flag_of(written)
        other = framework.synonyms.get(key, key)
        if other.startswith("not "):
            other, value = other.removeprefix("not "), value is False
        is_read = other in framework.defaults
        if is_read and other in settings and settings[other] != value:
            raise UsageError(
                f"{names[other]} is {settings[other]!r} and {written} is {value!r}",
                hint="give one of them",
            )
        name = other if is_read else written
        settings[name], names[name] = value, written
    return Arguments(settings, names, _number(settings, _GPUS), _number(settings, _NODES))


def flag_of(written: str) -> str:
    """The flag of a key: `model.tensor_model_parallel_size` or `--tensor-model-parallel-size`."""
    last = written if written.startswith("-") else written.rpartition(".")[2]
    return last.lstrip("-").replace("_", "-")


def _number(settings: Mapping[str, object], keys: Sequence[str]) -> int | None:
    by_key = {flag_of(name): value for name, value in settings.items()}
    found = (by_key.get(key) for key in keys)
    return next((n for n in found if isinstance(n, int) and n is not True and n > 0), None)


def _script(framework: FrameworkSpec, text: str, variables: Mapping[str, str]) -> Arguments:
    script = read_script(text, dict(variables))
    before, after = _training(framework, script)
    launcher = _flags(before) | _flags([w for m in _SBATCH.findall(text) for w in m.split()])
    said = {flag_of(name): value for name, value in launcher.items()}
    settings = _flags(after)
    _check_known(framework, settings)
    _check_set(framework, settings, script)
    return Arguments(
        settings,
        {key: f"--{key}" for key in settings},
        _number(said, _GPUS) or _variable(script, _GPU_VARIABLES),
        _number(said, _NODES) or _variable(script, _NODE_VARIABLES),
        tuple(Loss(line.partition(": ")[0], line.partition(": ")[2]) for line in script.skipped),
    )


def _variable(script: Script, names: Sequence[str]) -> int | None:
    values = [str(script.variables.values.get(name, "")) for name in names]
    return next((int(value) for value in values if re.fullmatch(r"\d{1,7}", value)), None)


def _training(framework: FrameworkSpec, script: Script) -> tuple[list[str], list[str]]:
    """The words before and after the program that is trained by, or arguments alone."""
    found = [cut for words in script.programs if (cut := _cut(framework, words))]
    bare = [word for words in script.programs if words[0].startswith("--") for word in words]
    if not found and bare:
        return [], bare
    found = found or _in_variables(framework, script)
    if len({tuple(after) for _, after in found}) != 1:
        what = f"{len(found)} commands with" if found else "no command with"
        noted = f" ({'; '.join(script.skipped)})" if script.skipped else ""
        raise UsageError(
            f"the script starts {what} arguments of {framework.title}{noted}",
            hint="give a script that starts one, as `torchrun ... pretrain_gpt.py --num-layers 32`",
        )
    return found[-1]


def _cut(framework: FrameworkSpec, words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    program = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if program is None or not set(_flags(words[program + 1 :])) & set(framework.defaults):
        return None
    return list(words[:program]), list(words[program + 1 :])


def _in_variables(framework: FrameworkSpec, script: Script) -> list[tuple[list[str], list[str]]]:
    """Commands that a variable holds for another program, such as sbatch."""
    found: list[tuple[list[str], list[str]]] = []
    for value in script.variables.values.values():
        words = value.split() if isinstance(value, str) else list(value)
        cut = _cut(framework, words)
        found += [cut] if cut else []
    return found


def _flags(words: Sequence[str]) -> Flat:
    """Flags and the words that follow each; the last of two wins, as argparse has it."""
    found: Flat = {}
    key = ""
    values: list[str] = []
    for word in (*words, "--"):
        if not word.startswith("--") and not re.fullmatch(r"-[A-Za-z]", word):
            values.append(word)
            continue
        if key:
            found[key] = _value(" ".join(values)) if values else True
        key, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
    return found


def _value(text: str) -> object:
    return text if text[:1] in ("'", '"', "") else scalar(text)


def _check_known(framework: FrameworkSpec, settings: Flat) -> None:
    """What a command would print is not known; where it is a setting that counts, it is asked."""
    for key, value in settings.items():
        if not isinstance(value, str) or UNKNOWN not in value:
            continue
        if key in framework.defaults:
            raise UsageError(
                f"--{key} is what a command prints, and commands are not run",
                hint=f"add it as a word: {key}=...",
            )
        settings[key] = value.replace(UNKNOWN, "?")


def _check_set(framework: FrameworkSpec, settings: Flat, script: Script) -> None:
    """A flag that wants a value and has none reads a variable that nobody sets."""
    wants = {k for k, default in framework.defaults.items() if not isinstance(default, bool)}
    bare = [key for key, value in settings.items() if value is True and key in wants]
    if bare:
        unset = ", ".join(script.variables.unset) or "none"
        raise UsageError(
            f"--{bare[0]} has no value; variables that the script reads and nobody sets: {unset}",
            hint=f"set them with words such as NNODES=8, or give {bare[0]}=...",
        )
