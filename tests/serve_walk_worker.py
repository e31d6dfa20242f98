"""`rooflight serve` that writes down its walks: `python serve_walk_worker.py FILE FOLDER WORD...`.

FILE gets those from the socket to the queue of the engine, and from the engine's thread to a token.
"""

import json
import sys
from pathlib import Path

from rooflight.cli.main import main
from rooflight.serve.engine.request import Delta
from rooflight.serve.engine.runner import Runner
from walks import recorded

with recorded(Runner.submit, Delta.__init__) as found:
    code = main(["serve", *sys.argv[2:]])
Path(sys.argv[1]).write_text(json.dumps([sorted(walks) for walks in found]))
sys.exit(code)
