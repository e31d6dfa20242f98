"""The scores by date of docs/accuracy.md end with what its own blocks print."""

from benchmarks.page import shown
from benchmarks.scores import HEADER, MARK, PAGE, scores


def test_the_last_line_is_what_the_page_prints_today() -> None:
    page = PAGE.read_text()
    header, *rows = shown(page, MARK)
    assert tuple(header) == HEADER and len(rows) >= 2
    assert tuple(rows[-1][1:]) == scores(page)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


def test_scores_are_read_from_what_validate_prints() -> None:
    page = (
        "training, dense: median error 3.5%, mean 5.9%, 80% inside\n"
        "training, experts: median error 9.7%, mean 14.7%, 85% inside\n"
        "dense     429    3.5%   5.9%  11.9%  +0.1%   80%   48%   8.9%   13.6%\n"
        "experts   190    9.7%  14.7%  30.0%  +0.1%   85%   48%  20.3%   27.2%\n"
    )
    cells = ("619", "3.5%, 5.9%", "9.7%, 14.7%", "8.9%, 20.3%", "13.6%, 27.2%", "")
    assert scores(page) == cells
    assert scores(page + "dense  855  4.4%  8.1%  17.1%  +0.1%  80%  47%  16.0%  13.1%\n") == cells
    assert scores("# Accuracy\n") == ()
