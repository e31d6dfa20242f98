"""Calibrations of serving: constants of an engine on a chip, fitted to measured times of a token.

In: `serving_calibrations/*.toml`, and `first_token_calibrations/*.toml` for the time to the first
one. Out: `Calibration`s. Names of chips are the catalog's, or a kind of chip that stands for all of
it; the engine `any` stands for all engines.
"""

from functools import partial
from pathlib import Path

from rooflight.hardware.calibration import (
    calibration_constants,
    load_calibration,
    shipped_calibrations,
)

SERVING_FOLDER = Path(__file__).parent / "serving_calibrations"
FIRST_TOKEN_FOLDER = Path(__file__).parent / "first_token_calibrations"

serving_constants = partial(calibration_constants, SERVING_FOLDER)
shipped_serving = partial(shipped_calibrations, SERVING_FOLDER)
load_serving_calibration = partial(load_calibration, folder=SERVING_FOLDER)
load_first_token = partial(load_calibration, folder=FIRST_TOKEN_FOLDER)
