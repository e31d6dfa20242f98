"""`python -m build`: the wheel and the sdist hold the package, all of it, and nothing else."""

import email
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import rooflight

ROOT = Path(__file__).parents[1]
PACKAGE = "src/rooflight"
VERSION = rooflight.__version__
INFO = f"rooflight-{VERSION}.dist-info"
METADATA = {f"{INFO}/{n}" for n in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
LICENSE = f"{INFO}/licenses/LICENSE"
MOST_BYTES = 2_000_000
SHELLS = {".bash", ".fish", ".zsh"}
ASSETS = {".cc", ".css", ".h", ".js", ".json", ".pb", ".svg", ".toml", ".txt", ".txtpb", ".typed"}
KINDS = ASSETS | SHELLS


def package_files() -> dict[str, bytes]:
    """What the repository has of the package, by its path in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", PACKAGE],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {str(p.relative_to(ROOT / "src")): p.read_bytes() for p in paths if p.is_file()}


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    (path,) = built.glob("*.whl")
    assert path.name == f"rooflight-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist(built: Path) -> dict[str, bytes]:
    (path,) = built.glob("*.tar.gz")
    found: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None, f"{member.name} is not a plain file"
            found[member.name.removeprefix(f"rooflight-{VERSION}/")] = file.read()
    return found


def test_the_wheel_has_the_package_byte_for_byte_and_its_metadata(wheel: dict[str, bytes]) -> None:
    """It was built from the sdist, so the sdist is enough to build it."""
    code = {name: data for name, data in wheel.items() if not name.startswith(INFO)}
    files = package_files()
    assert code.keys() == files.keys()
    assert [name for name in files if code[name] != files[name]] == []
    assert {name for name in wheel if name.startswith(INFO)} == {*METADATA, LICENSE}
    assert wheel[LICENSE] == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_has_the_package_and_what_builds_it(sdist: dict[str, bytes]) -> None:
    files = {f"src/{name}": data for name, data in package_files().items()}
    about = ("LICENSE", "README.md", "pyproject.toml", ".gitignore")
    files |= {name: (ROOT / name).read_bytes() for name in about}
    assert sdist.keys() == {*files, "PKG-INFO"}
    assert [name for name in files if sdist[name] != files[name]] == []


def test_data_of_every_kind_is_in_the_wheel(wheel: dict[str, bytes]) -> None:
    """A new kind of file is a decision: it is added here."""
    code = [Path(name) for name in wheel if not name.startswith(INFO)]
    assert {path.suffix for path in code} == {".py", *KINDS}


def test_the_archives_are_small(built: Path) -> None:
    assert {
        p.name: p.stat().st_size for p in built.iterdir() if p.stat().st_size > MOST_BYTES
    } == {}


def test_the_metadata_is_that_of_the_project(wheel: dict[str, bytes]) -> None:
    found = email.message_from_bytes(wheel[f"{INFO}/METADATA"])
    assert (found["Name"], found["Version"]) == ("rooflight", VERSION)
    assert found["License-Expression"] == "Apache-2.0"
    needed = [r for r in found.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert needed == ["numpy>=1.26"]
    assert b"rooflight = rooflight.cli.main:entry" in wheel[f"{INFO}/entry_points.txt"]
