"""Writes the function of a region as bytes, for backends whose records have this form."""

from __future__ import annotations

import json

import numpy as np

from clew.ir.expr import Function
from clew.ir.module import Module
from clew.ir.textfile import packed_module, unpacked_module
from clew.support.text_arrays import dtype_name, dtype_named, is_text

_WIDTH = 8  # bytes of the length of the head


def function_record(function: Function) -> bytes | None:
    """Returns a function with its constants as bytes; None if a constant is a tensor of text."""
    text, constants = packed_module(Module({"main": function}))
    if any(is_text(array) for array in constants.values()):
        return None
    table = {n: [dtype_name(a.dtype), list(a.shape), a.nbytes] for n, a in constants.items()}
    head = json.dumps({"text": text, "constants": table}).encode()
    parts = [np.ascontiguousarray(a).tobytes() for a in constants.values()]
    return b"".join([len(head).to_bytes(_WIDTH, "little"), head, *parts])


def function_of_record(record: bytes) -> Function:
    """Returns the function from `function_record`.

    Errors: ValueError, KeyError and those of `parse_module` for a damaged record.
    """
    end = _WIDTH + int.from_bytes(record[:_WIDTH], "little")
    head = json.loads(record[_WIDTH:end])
    constants = {}
    for name, (dtype, shape, size) in head["constants"].items():
        data = np.frombuffer(record[end : end + size], dtype_named(dtype))
        constants[name], end = data.reshape(shape), end + size
    return unpacked_module(head["text"], constants).main
