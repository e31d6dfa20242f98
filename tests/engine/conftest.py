"""Lets the tests here import the files beside them, which are programs and not tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
