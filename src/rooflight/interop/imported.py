"""`Imported`: another framework's configuration as the parts of a plan, and what was not read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflight.errors import UnknownNameError
from rooflight.hardware.mesh import Mesh, parse_mesh, place
from rooflight.hardware.slice import Slice
from rooflight.interop.framework import FrameworkSpec, Loss
from rooflight.interop.roles import OUTER
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec

_ORDER = ("dp", "fsdp", "cp", "ulysses", "tp", "sp", "mp", "ep", "pp")  # as layouts are written
_TENSOR = {"tp", "sp", "mp"}
_LETTERS: dict[tuple[str, ...], str] = {("fsdp",): "X", ("dp",): "Z", ("pp",): "P"}
_SPARE = "YWVUT"


@dataclass(frozen=True, slots=True)
class Imported:
    """All that a planner asks, and a layout to price: question and answer of a configuration."""

    framework: FrameworkSpec
    model: ModelSpec
    on: Slice
    layout: str
    mesh: Mesh
    batch: int  # sequences
    seq: int
    dtype: str
    recipe: str
    remat: str
    zero: int
    stages: int
    schedule: str | None
    microbatches: int
    virtual: int
    losses: tuple[Loss, ...]  # what is set there and has no name here, or another meaning
    unread: tuple[str, ...]  # keys of the file that decide nothing of this

    @property
    def is_faithful(self) -> bool:
        return not any(loss.is_material for loss in self.losses)


@dataclass(frozen=True, slots=True)
class Degree:
    """One kind of parallelism: its schemes, its ways across slices or nodes and inside."""

    schemes: tuple[str, ...]
    outer: int
    inner: int

    @property
    def ways(self) -> int:
        return self.outer * self.inner


def name_axes(degrees: Sequence[Degree]) -> dict[str, Degree]:
    """Axis names for all degrees above 1: X for fsdp, Z for dp, P for stages, Y for tensor ranks.

    >>> name_axes([Degree(("fsdp",), 1, 8), Degree(("sp",), 1, 4)])["Y"].schemes
    ('sp',)
    """
    used = [d for d in degrees if d.ways > 1] or [Degree(("fsdp",), 1, 1)]
    fixed = {_LETTERS[d.schemes]: d for d in used if d.schemes in _LETTERS}
    for letter, scheme in (("X", "fsdp"), ("Z", "dp"), ("X", "dp")):  # experts on data axes
        open_to = (d for d in used if scheme in d.schemes and d not in fixed.values())
        shared = next(open_to, None)
        fixed |= {letter: shared} if shared and letter not in fixed else {}
    rest = [d for d in used if d not in fixed.values()]
    rest.sort(key=lambda d: not _TENSOR & set(d.schemes))
    letters = dict(zip(_SPARE, rest, strict=False)) | fixed
    return {a: d for d in used for a, named in letters.items() if named == d}


def layout_text(axes: Mapping[str, Degree], modes: Mapping[str, str] | None = None) -> str:
    """The layout of named axes, schemes in the order in which we write them.

    >>> layout_text({"Y": Degree(("cp",), 1, 4)}, {"cp": "ring"})
    'cp=Y:ring'
    """
    parts = {s: "".join(a for a, d in axes.items() if s in d.schemes) for s in _ORDER}
    ends = {scheme: f":{mode}" for scheme, mode in (modes or {}).items()}
    return ",".join(f"{s}={names}{ends.get(s, '')}" for s, names in parts.items() if names)


def row_major(axes: Mapping[str, Degree], on: Slice) -> Mesh:
    """Axes in order, the last one innermost: how ranks are numbered behind switches."""
    dims = tuple((dim.name, None) for dim in on.dims)
    return place({a: d.ways for a, d in axes.items()}, on, wanted=dict.fromkeys(axes, dims))


def straddles(mesh: Mesh) -> list[Loss]:
    """What is not so where ranks in order would cut a node or a leaf into unequal groups."""
    dims = [dim.name for dim in mesh.slice.dims]
    places = [(dims.index(p.dim), -p.stride) for ps in mesh.segments.values() for p in ps]
    because = "ranks in order do not fill nodes evenly; taken for groups that do"
    return [] if places == sorted(places) else [Loss(f"mesh {mesh}", because)]


def hybrid(axes: Mapping[str, Degree], on: Slice) -> Mesh:
    """The outer part of each axis across slices or nodes, the inner part inside one."""
    inner = place({a: d.inner for a, d in axes.items()}, inside(on))
    places = {name: [f"{p.dim}{p.size}" for p in parts] for name, parts in inner.segments.items()}
    left = {dim.name: dim.size for dim in on.dims if dim.name in OUTER}
    for name, degree in axes.items():
        places[name] = [*_take(degree.outer, left), *places[name]]
    text = ",".join(f"{a}={d.ways}" + _at(places[a]) for a, d in axes.items())
    return parse_mesh(text, on=on)


def _take(ways: int, left: dict[str, int]) -> list[str]:
    """Takes so many ways from the outermost dims that are left."""
    taken: list[str] = []
    for dim, size in left.items():
        part = next(n for n in range(min(ways, size), 0, -1) if not ways % n and not size % n)
        if part > 1:
            taken.append(f"{dim}{part}")
        left[dim], ways = size // part, ways // part
    return taken


def _at(places: Sequence[str]) -> str:
    return "@" + "+".join(places) if places else ""


def inside(on: Slice) -> Slice:
    """One slice of several, or one node."""
    return Slice(on.chip, on.shape if on.chip.torus else on.shape[:1])


def name_of(
    framework: FrameworkSpec, table: str, values: Mapping[str, object], *, what: str, fallback: str
) -> tuple[str, list[Loss]]:
    """Our name of what the settings say, the most of them; else the fallback, as a loss."""
    rows = framework.tables[table]
    fits = [r for r in rows if all(values.get(k) == v for k, v in r.settings.items())]
    if fits:
        row = max(fits, key=lambda r: len(r.settings))
        return row.name, [Loss(f"{what} {row.name}", row.differs)] if row.differs else []
    said = ", ".join(f"{key} = {values.get(key)}" for key in rows[0].settings)
    return fallback, [Loss(said, f"not one that we have; taken for {what} {fallback}")]


def find_model(framework: FrameworkSpec, theirs: str) -> ModelSpec:
    """Our model of one of theirs."""
    ours = framework.our_model(theirs)
    if ours is None:
        names = ", ".join(framework.models.values())
        raise UnknownNameError(
            f"model of {framework.title}",
            theirs,
            (),
            hint=f"name it with --model (a preset or a config.json); known are {names}",
        )
    return load_model(ours)
