"""A third opinion: what torch computes in f64."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from exports.comparing import JUDGED
from exports.entries import Entry
from exports.exporting import made


def in_f64(entry: Entry, path: Path) -> None:
    """Writes torch's results in f64 for the values of the `JUDGED` seeds: `SEED.OUTPUT` in a
    `.npz`.

    Raises torch's errors if a network names f32 explicitly.
    """
    import torch  # noqa: PLC0415 - optional

    torch.set_num_threads(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = made(entry)[0].double()
        found = {}
        for seed in JUDGED:
            drawn = [torch.from_numpy(value) for value in entry.draw(seed).values()]
            outputs = module(*(v.double() if v.is_floating_point() else v for v in drawn))
            for n, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
                found[f"{seed}.{n}"] = value.numpy()
    np.savez(path, **found)
