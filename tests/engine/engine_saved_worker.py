"""Tiny models of `transformers` and their greedy texts, saved for the workers that compare.

Run as a process of its own: `python engine_saved_worker.py FOLDER NAME...`. Torch and transformers
take ten seconds to import: here once for all of them. Prints the names.
"""

import json
import sys
from pathlib import Path

import engine_texts_worker as texts

if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    for name in names:
        texts.told_by_them(Path(folder) / name, name, {})
    print(json.dumps(names))
