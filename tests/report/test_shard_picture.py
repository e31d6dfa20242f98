"""Shard pictures: golden text, and an SVG with every block, its holders and its colour."""

from itertools import product
from xml.etree import ElementTree

import pytest

from rooflight.ui.svg.shard import ShardPicture, name_holders, shard_svg, shard_text

NAMESPACE = "{http://www.w3.org/2000/svg}"


def picture(dims: dict[str, int], *, copies: int = 1) -> ShardPicture:
    """Blocks in order, each on the next `copies` devices."""
    blocks = list(product(*(range(n) for n in dims.values())))
    holders = {
        block: tuple(str(i * copies + c) for c in range(copies)) for i, block in enumerate(blocks)
    }
    return ShardPicture(f"A[{', '.join(dims)}]", tuple(dims), tuple(dims.values()), holders)


def block_rects(markup: str) -> list[ElementTree.Element]:
    rects = ElementTree.fromstring(markup).findall(NAMESPACE + "rect")
    return [rect for rect in rects if rect.find(NAMESPACE + "title") is not None]


def tooltips(markup: str) -> list[str]:
    titles = [rect.find(NAMESPACE + "title") for rect in block_rects(markup)]
    return [title.text or "" for title in titles if title is not None]


def test_a_matrix_on_a_mesh_is_as_drawn() -> None:
    assert shard_text(picture({"I_X": 2, "J_Y": 3})) == (
        "A[I_X, J_Y]: 6 blocks, each on 1 device\n"
        "\n"
        "        J_Y\n"
        "        0   1   2\n"
        "      +---+---+---+\n"
        "I_X 0 | 0 | 1 | 2 |\n"
        "      +---+---+---+\n"
        "    1 | 3 | 4 | 5 |\n"
        "      +---+---+---+"
    )


def test_a_replicated_block_names_its_first_and_last_holders() -> None:
    assert shard_text(picture({"I_X": 2, "J": 1}, copies=16)) == (
        "A[I_X, J]: 2 blocks, each on 16 devices\n"
        "\n"
        "        J\n"
        "      +-------------+\n"
        "I_X 0 | 0,1,..,15   |\n"
        "      +-------------+\n"
        "    1 | 16,17,..,31 |\n"
        "      +-------------+"
    )


def test_a_third_dim_becomes_panels() -> None:
    assert shard_text(picture({"B_X": 2, "T": 1, "D_Y": 2})) == (
        "A[B_X, T, D_Y]: 4 blocks, each on 1 device\n"
        "\n"
        "B_X block 0\n"
        "      D_Y\n"
        "      0   1\n"
        "    +---+---+\n"
        "T   | 0 | 1 |\n"
        "    +---+---+\n"
        "\n"
        "B_X block 1\n"
        "      D_Y\n"
        "      0   1\n"
        "    +---+---+\n"
        "T   | 2 | 3 |\n"
        "    +---+---+"
    )


def test_a_scalar_is_one_block() -> None:
    assert shard_text(picture({}, copies=2)) == (
        "A[]: 1 block on 2 devices\n\n   +-----+\n   | 0,1 |\n   +-----+"
    )


@pytest.mark.parametrize(
    ("limit", "text"), [(2, "0,..,9"), (4, "0,1,..,9"), (9, "0,1,2,3,4,5,6,..,9")]
)
def test_holders_beyond_a_limit_lose_their_middle(limit: int, text: str) -> None:
    assert name_holders([str(i) for i in range(10)], limit) == text


def test_long_dims_show_their_first_blocks_and_their_last() -> None:
    lines = shard_text(picture({"I_X": 64, "J_Y": 64}), width=80).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[2].strip() == "J_Y"
    assert lines[3].split()[-2:] == ["..", "63"]
    assert lines[-2].split()[0] == "63"
    assert lines[-2].split()[-2] == "4095"
    assert len(lines) == 5 + 2 * 16


@pytest.mark.parametrize("dims", [{}, {"I_X": 8}, {"I_X": 4, "J_Y": 4}, {"A": 4, "B": 2, "C": 2}])
def test_the_svg_holds_each_block_once_with_all_its_holders(dims: dict[str, int]) -> None:
    drawn = picture(dims, copies=5)
    assert tooltips(shard_svg(drawn)) == [",".join(ids) for ids in drawn.holders.values()]


def test_blocks_of_the_svg_lie_side_by_side_inside_it() -> None:
    root = ElementTree.fromstring(shard_svg(picture({"I_X": 4, "J_Y": 4})))
    places = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in block_rects(ElementTree.tostring(root, encoding="unicode"))
    ]
    columns, rows = sorted({p[0] for p in places}), sorted({p[1] for p in places})
    assert len(columns) == len(rows) == 4
    assert [p[:2] for p in places] == [(x, y) for y in rows for x in columns]
    assert all(abs(columns[i + 1] - columns[i] - places[0][2]) < 0.2 for i in range(3))
    assert max(p[1] + p[3] for p in places) <= float(root.attrib["height"])
    assert max(p[0] + p[2] for p in places) <= float(root.attrib["width"])


def test_blocks_with_the_same_holders_share_a_colour() -> None:
    holders = {(0,): ("0",), (1,): ("1",), (2,): ("0",)}
    colours = [
        r.attrib["fill"] for r in block_rects(shard_svg(ShardPicture("A", ("I",), (3,), holders)))
    ]
    assert colours[0] == colours[2] != colours[1]


def test_markup_in_a_title_is_escaped() -> None:
    drawn = shard_svg(ShardPicture("A<B & C>", ("I",), (1,), {(0,): ("<0>",)}))
    assert ElementTree.fromstring(drawn).findtext(NAMESPACE + "title") == "A<B & C>"
    assert tooltips(drawn) == ["<0>"]
