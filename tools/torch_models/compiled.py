"""Runs one model under `torch.compile` at several sizes with new values, against eager."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import clew.torch
from exports.entries import Entry
from exports.exporting import network_and_inputs
from torch_models.comparing import Result, drawn, in_f64, judge, outputs, tensors, torch_call


def check_compiled(entry: Entry, dynamic: bool, phase: Callable[[str], None]) -> Result:
    """Returns the outcome of one model, compiled for fixed sizes or for free ones."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True  # else Dynamo leaves recurrent modules in eager
    before = clew.torch.last()
    found = Result(spec="compile")
    phase("eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch_call(lambda: network_and_inputs(entry)[0])
        example = tensors(entry, 1)
        options = {"threads": 1, "cache": False}
        run = torch.compile(module, backend="clew", dynamic=dynamic, options=options)
        for n, inputs in enumerate(drawn(entry, dynamic, {}, example)):
            phase(f"eager {n}")
            wanted = torch_call(partial(outputs, entry, module, inputs))
            phase("compile" if n == 0 else f"run {n}")
            started = time.perf_counter()
            ours = outputs(entry, run, inputs)
            if n == 0:
                found.compile_s = time.perf_counter() - started
            found.runs += 1
            judge([_array(x) for x in ours], wanted, found)
            if found.status != "agrees":
                phase("f64")
                in_f64(entry, module, inputs, [_array(x) for x in ours], wanted, found)
                break
    programs = clew.torch.last()
    if programs is before:
        programs = clew.torch.Programs()
    found.programs = len(programs)
    found.left = [str(call) for call in programs.left]
    found.nodes = sum(len(p.compiled.kernels) for p in programs)
    if not found.programs and found.status == "agrees":
        found.status, found.why = "in eager", "; ".join(found.left[:3])
    return found


def _array(tensor: Any) -> Any:
    return tensor.detach().numpy()
