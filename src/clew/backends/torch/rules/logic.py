"""Elementwise logic, bit operations and selection."""

from __future__ import annotations

from typing import Final

import torch

from clew.backends.torch.registry import builds
from clew.backends.torch.rules.unary import direct

_DIRECT: Final = {
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "where": torch.where,
}

for _name, _function in _DIRECT.items():
    builds(_name)(direct(_function))
