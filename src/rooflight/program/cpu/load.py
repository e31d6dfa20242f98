"""Foreign functions for a CPU, made of `csrc/` by this machine's compiler when first asked for.

In: C++ sources beside this module. Out: targets that `jax.ffi.ffi_call` finds by name. The library
lies in the user's cache folder (XDG_CACHE_HOME) under a hash of all that it is made of: sources,
flags, the headers of jax, the compiler, the processor. Without a compiler ($CXX, or else `c++`), or
where it fails, there are no such functions, and what XLA compiles does the same more slowly.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp

from rooflight.files import is_own, user_cache

PAGED_ATTENTION = "rooflight_paged_attention"
FEW_ROWS = "rooflight_few_rows"
_SYMBOLS = {PAGED_ATTENTION: "PagedAttentionHandler", FEW_ROWS: "FewRowsHandler"}
STORED = (jnp.float32, jnp.bfloat16)  # numbers that they take
_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno"),
    *("-fPIC", "-shared"),
)
_SECONDS = 120  # that a compiler may take
_log = logging.getLogger(__name__)


@cache
def has_native() -> bool:
    """Whether this process has them: made, loaded and registered at the first call."""
    try:
        functions = ctypes.CDLL(str(library()))
        for name, symbol in _SYMBOLS.items():
            handler = jax.ffi.pycapsule(getattr(functions, symbol))
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        _log.warning("no FFI custom calls for this CPU, attention will be slower: %s", error)
        return False
    return True


def library() -> Path:
    """The library, from the cache or else compiled now."""
    if os.name != "posix":
        raise OSError("they are made on POSIX systems only")
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    folder = _own_folder()
    path = folder / f"native-{_identity(compiler)}.so"
    if not is_own(path):  # not there, or planted while others could write the folder
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            sources = [str(p) for p in sorted(_SOURCES.glob("*.cc"))]
            include = ("-isystem", jax.ffi.include_dir())
            _output([*compiler, *_FLAGS, *include, *sources, "-o", str(made)])
            made.replace(path)  # at once, in case another process makes it now
    return path


def _own_folder() -> Path:
    """A folder of this user's, which nobody else may write: code is loaded from it."""
    folder = user_cache().resolve()
    if not is_own(folder):
        raise PermissionError(f"{folder} can be written by others; chmod 700 it if it is yours")
    return folder


def _identity(compiler: list[str]) -> str:
    parts = [p.read_bytes() for p in sorted(_SOURCES.iterdir())]
    told = (*_FLAGS, jax.__version__, _processor(), _output([*compiler, "--version"]))
    return hashlib.sha256(b"\0".join([*parts, *(t.encode() for t in told)])).hexdigest()[:32]


def _processor() -> str:
    """What it can do: a library made for one with wider vectors must not be loaded here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return next((x for x in lines if x.startswith(("flags", "Features"))), platform.machine())


def _output(command: list[str]) -> str:
    """What a command prints; its errors where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise OSError(f"no {command[0]} here; install a C++ compiler, or name one in CXX") from None
    if done.returncode:
        said = done.stderr[-500:].strip()
        raise OSError(f"{command[0]} ended with {done.returncode}; name another in CXX. {said}")
    return done.stdout
