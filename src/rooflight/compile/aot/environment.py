"""What this machine can compile for: the packages it has, and the environment of a compile."""

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rooflight.errors import MissingExtraError, UsageError, install

# The compiler must not look for a chip, a lock, a log folder or a metadata server, and must say
# its warnings, which it keeps to itself otherwise.
_QUIET = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # beside a user's file
}
# What a user may have set would change the program or the compiler behind the cache's back.
_PROBE = (
    "import sys; from importlib.util import find_spec; import jax;"
    "assert any(map(find_spec, sys.argv[1:])), f'it has no {sys.argv[1]}';"
    "assert sys.version_info >= (3, 11), 'older than Python 3.11'"
)
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")}
_MAKE = {
    "tpu": "older/bin/pip install 'jax[tpu]==0.9.2' optax safetensors; --compiler older",
    "gpu": "cuda/bin/pip install 'jax[cuda12-local]' optax safetensors; --compiler cuda",
}
_DROPPED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64")
# By the name of an extra: which verbs need it, and its packages beyond jax.
_EXTRAS = {
    "program": ("programs (verify, ckpt)", ("optax", "safetensors")),
    "train": ("train, launch, tokens", ("optax", "grain", "orbax-checkpoint", "tokenizers")),
    "serve": ("serve", ("aiohttp", "jinja2", "prometheus-client", "safetensors", "tokenizers")),
    "serve-more": ("serve: JSON schemas, traces", ("llguidance", "opentelemetry-api")),
    "bench": ("bench, route", ("aiohttp",)),
    "validate": ("rows in YAML", ("pyyaml",)),
}


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing a machine can or cannot do, with the version that does it or how to get it."""

    name: str
    version: str | None
    remedy: str

    @property
    def is_there(self) -> bool:
        return self.version is not None


def package_version(name: str) -> str | None:
    """The version of an installed package, None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def compiler_versions(kind: str) -> dict[str, str]:
    """The packages that decide what comes out of a compile."""
    names = {"tpu": ("jax", "jaxlib", "libtpu"), "gpu": ("jax", "jaxlib", _gpu_plugin() or "")}
    found = {name: package_version(name) for name in names[kind] if name}
    return {name: text for name, text in found.items() if text}


def abilities() -> list[Ability]:
    """Everything verification can use, there or not."""
    tpu = install("tpu")
    host = f"{platform.system()} {platform.machine()}"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        tpu = f"libtpu has no wheel for {host}; use Linux on x86-64"
    plugin, jax = _gpu_plugin(), package_version("jax")
    pin = f"=={jax}" if jax else ""  # plugins follow jax version by version
    return [
        Ability("jax", jax, install("jax")),
        Ability("TPU compiler (libtpu)", package_version("libtpu"), tpu),
        Ability(
            "GPU compiler (CUDA plugin)",
            package_version(plugin) if plugin else None,
            f"pip install --no-deps jax-cuda12-plugin{pin} jax-cuda12-pjrt{pin}",
        ),
        *(_extra(name, what, packages) for name, (what, packages) in _EXTRAS.items()),
    ]


def _extra(name: str, what: str, packages: Sequence[str]) -> Ability:
    """There if all its packages are."""
    missing = [p for p in packages if package_version(p) is None]
    versions = ", ".join(f"{p} {package_version(p)}" for p in packages)
    remedy = f"{install(name)} ({', '.join(missing)})" if missing else install(name)
    return Ability(what, None if missing else versions, remedy)


def _gpu_plugin() -> str | None:
    names = ("jax-cuda12-plugin", "jax-cuda13-plugin")
    return next((n for n in names if package_version(n)), None)


def require_compiler(kind: str) -> None:
    """Raises unless this machine has the compiler for a kind of chip."""
    if find_spec("jax") is None:
        raise MissingExtraError("compiling needs jax, which is not installed", hint=install("tpu"))
    needed = abilities()[2 if kind == "gpu" else 1]
    if not needed.is_there:
        raise MissingExtraError(
            f"compiling for this slice needs the {needed.name}, which is not installed",
            hint=needed.remedy,
        )


def find_compiler(text: str, kind: str) -> str:
    """The interpreter of another environment, given itself or by its folder, which compiles.

    It needs jax, the compiler of this kind of chip and what the program imports; Rooflight's own
    code comes from here.
    """
    path = Path(text).expanduser()
    python = str((path / "bin" / "python" if path.is_dir() else path).absolute())
    try:
        probe = [python, "-c", _PROBE, *_COMPILERS[kind]]
        said = subprocess.run(probe, capture_output=True, text=True, timeout=60)
        words = said.stderr.strip().splitlines()
        why = "" if said.returncode == 0 else words[-1] if words else f"exit {said.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        raise UsageError(
            f"{text!r} must be a Python with jax and {_COMPILERS[kind][0]}, or its environment:"
            f" {why}",
            hint=f"python -m venv {_MAKE[kind].partition('/')[0]}; {_MAKE[kind]}",
        )
    return python


def child_environment(outside: Mapping[str, str]) -> dict[str, str]:
    """The environment of a compile: quiet, without a device, and free of the user's XLA flags."""
    return {k: v for k, v in outside.items() if k not in _DROPPED} | _QUIET
