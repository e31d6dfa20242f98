"""Lets the tests here import the files beside them, which are programs and not tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = ["*_worker.py", "speed.py", "steps_table.py", "peers.py"]
