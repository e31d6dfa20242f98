"""Seals: any damage to a checkpoint's files is found, by whichever process has them."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.errors import RooflightError
from rooflight.train.seal import Sealing, damage, is_sealed, write_seal

_FILES = ("a", "d/one", "d/two", "d/three", "e/f/g")


def _checkpoint(folder: Path, seals: int) -> Path:
    for number, name in enumerate(_FILES):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(range(40 + number)))
    for index in range(seals):
        write_seal(folder, index, seals)
    return folder


def _found(folder: Path, processes: int) -> list[str]:
    return [why for i in range(processes) if (why := damage(folder, i, processes))]


@pytest.mark.parametrize("seals", [1, 2, 7])
@pytest.mark.parametrize("processes", [1, 3])
def test_a_whole_checkpoint_is_whole_for_any_number_of_processes(
    tmp_path: Path, seals: int, processes: int
) -> None:
    folder = _checkpoint(tmp_path, seals)
    assert is_sealed(folder) and _found(folder, processes) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(_FILES), st.integers(0, 39), st.integers(0, 7), st.integers(1, 4))
def test_one_flipped_bit_is_found_by_exactly_one_process(
    tmp_path_factory: pytest.TempPathFactory, name: str, byte: int, bit: int, processes: int
) -> None:
    folder = _checkpoint(tmp_path_factory.mktemp("flip"), 3)
    data = bytearray((folder / name).read_bytes())
    data[byte] ^= 1 << bit
    (folder / name).write_bytes(data)
    assert _found(folder, processes) == [f"{name} has other bytes than were written"]


def test_a_shorter_a_missing_and_an_unsealed_file_are_found(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path, 2)
    (folder / "d/two").write_bytes(b"")
    assert _found(folder, 2) == ["d/two has 0 bytes, not 42"]
    (folder / "d/two").unlink()
    assert _found(folder, 2) == ["d/two is missing"] * 2
    (folder / "seal.1-of-2.json").unlink()
    assert not is_sealed(folder)
    assert _found(folder, 1) == ["not all of its seals are there"]


@pytest.mark.parametrize("text", ["", "{", '{"files": 3}', '{"files": {"a": 1}}', "[]"])
def test_a_seal_that_cannot_be_read_is_damage(tmp_path: Path, text: str) -> None:
    folder = _checkpoint(tmp_path, 2)
    (folder / "seal.0-of-2.json").write_text(text)
    assert damage(folder) == "seal.0-of-2.json cannot be read"


def test_a_seal_that_could_not_be_written_is_an_error_and_not_a_saved_checkpoint(
    tmp_path: Path,
) -> None:
    (tmp_path / "seal.0-of-1.new").mkdir()  # in the place of the file, as a disk that refuses it
    sealing = Sealing(tmp_path, 0, 1)
    sealing.start()
    sealing.join()
    with pytest.raises(RooflightError, match=r"cannot be sealed: .*seal\.0-of-1\.new"):
        sealing.is_done()
    assert not is_sealed(tmp_path)
