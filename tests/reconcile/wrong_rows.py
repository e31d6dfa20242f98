"""Rows whose measurements belong to others: what a fit must fail on."""

from dataclasses import replace

import numpy as np

from rooflight.measure.published.replay import CaseSet


def shuffled(asked: CaseSet, seed: int = 0) -> CaseSet:
    times = [case.measured_s for case in asked.cases]
    mixed: list[float] = np.random.default_rng(seed).permutation(times).tolist()
    cases = zip(asked.cases, mixed, strict=True)
    return replace(asked, cases=tuple(replace(case, measured_s=s) for case, s in cases))
