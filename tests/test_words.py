"""One vocabulary, the field's: private words of earlier versions are gone from code and docs.

A word is banned as a whole word, an identifier or a part of one (`products_s`), within the folders
where it meant what the field calls otherwise; `ALLOWED` has the places of other meanings.
"""

import fnmatch
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVERYWHERE = ("src/*.py", "docs/*.md", "README.md", "ARCHITECTURE.md", "labs/*.py")
OLD_NAMES = "src/rooflight/cli/verbs.py", "src/rooflight/plan/file/record.py"

BANNED: dict[str, tuple[str, ...]] = {  # pattern -> files, then those where it is allowed
    r"products(?! of (divisors|others|such))": EVERYWHERE,
    r"done again|does again|again_s|again_flops|remade|Again": EVERYWHERE,
    r"in pieces": ("docs/plan*.md", "docs/guides/*.md", "src/rooflight/cli/planning/plan*.py"),
    r"kept": ("src/rooflight/plan/training/memory/*.py", "src/rooflight/plan/training/time/*.py"),
    r"roofs (of the catalog )?allow": EVERYWHERE,
    r"judge[ds]?|judge_program": ("src/*.py", "docs/verify.md", "docs/plan.md"),
    r"[Ss]eparated|separation|is_separated|Separated[A-Z]\w+": EVERYWHERE,
    r"drafts|num_drafts|drafted_tokens|guesses": EVERYWHERE,
    r"texts": ("src/rooflight/serve/engine/*.py", "src/rooflight/serve/disaggregated/*.py"),
    r"HostTier|host tier|few bits|in_few_bits": EVERYWHERE,
    r"[Pp]atience|patience_s": EVERYWHERE,
    r"[Pp]romise[ds]?": ("src/rooflight/cli/**/*.py", "src/rooflight/plan/*.py", "docs/fleet.md"),
    r"foreign functions?": EVERYWHERE,
    r"Pins|(generate_|serving_)?pins(_of)?|Wanted|parse_wanted|pattern_of": EVERYWHERE,
    r"rows (each, by|per step|a decode)": ("src/*.py", "docs/fleet.md", "docs/simulate.md"),
    r"[Gg]roundwork|known_layers|[Bb]orrower|[Ll]ender|bent|Standing": EVERYWHERE,
    r"(?i:whoever)|(?i:the very)": EVERYWHERE,
    r"tokens an? (step|chip|second|device|sequence)(?! (has|needs))": EVERYWHERE,
}
ALLOWED: dict[str, tuple[str, ...]] = {
    "products": ("docs/serve.md", "src/rooflight/book/solve.py", *OLD_NAMES),
    "separated": (*OLD_NAMES, "src/rooflight/units.py"),
    "drafts": (*OLD_NAMES, "src/rooflight/measure/trace/xspace.py"),
    "guesses": ("src/rooflight/serve/disaggregated/transfer.py",),
    "patience": OLD_NAMES,
}


def _files(patterns: tuple[str, ...]) -> list[Path]:
    found = [
        *ROOT.glob("*.md"),
        *(p for top in ("src", "docs", "labs") for p in ROOT.rglob(f"{top}/**/*")),
    ]
    return [
        p for p in found if any(fnmatch.fnmatch(str(p.relative_to(ROOT)), one) for one in patterns)
    ]


@pytest.mark.parametrize("pattern", BANNED)
def test_an_old_word_is_gone(pattern: str) -> None:
    word = re.compile(rf"(?<![A-Za-z0-9])({pattern})(?![A-Za-z0-9])")
    files = _files(BANNED[pattern])
    assert files
    left: list[str] = []
    for path in files:
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = word.search(line)
            if found and name not in ALLOWED.get(found[1].lower(), ()):
                left.append(f"{name}:{number}: {found[1]}")
    assert not left, "\n".join(left)


def test_an_old_word_would_be_found() -> None:
    (pattern, *_) = BANNED
    word = re.compile(rf"(?<![A-Za-z0-9])({pattern})(?![A-Za-z0-9])")
    assert word.search("time.products_s") and word.search("the products of a layer")
    assert not word.search("products of divisors") and not word.search("byproducts")


def test_places_that_are_allowed_have_the_word() -> None:
    for word, names in ALLOWED.items():
        for name in set(names) - set(OLD_NAMES):
            assert re.search(rf"(?i)\b{word}\b", (ROOT / name).read_text()), f"{name} lacks {word}"
