"""Exported programs in files, with parts replaced by a stranger's."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"


class Network(nn.Module):
    """Weights, a buffer that is a view, constants, a branch, lists, free sizes of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("turned", torch.arange(8.0).reshape(2, 4).t())
        self.three = torch.tensor([1, 2, 3])

    def forward(self, x: torch.Tensor, by_name: dict[str, torch.Tensor]) -> Any:
        y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.linear(x),))
        return {
            "a": y + self.three[0],
            "r": torch.split(x, 2, 1)[0] @ self.turned[:2],
            "n": by_name["z"][: x.shape[0] // 2 + 1].reshape(-1),
            "d": torch.nonzero(x > 0),
            "f": nn.functional.gelu(x, approximate="tanh"),
            "e": torch.full((x.shape[0],), float("inf")),
        }


class Touch:
    """A pickle that makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


class Program:
    """The file of a program, and the mark that code in it would make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder / "ran"
        any_size = torch.export.Dim.AUTO
        args = (torch.randn(6, 4), {"z": torch.randn(8, 4)})
        shapes = {"x": {0: any_size}, "by_name": {"z": {0: any_size}}}
        program = torch.export.export(Network().eval(), args, dynamic_shapes=shapes)
        path = folder / "good.pt2"
        torch.export.save(program, path)
        with zipfile.ZipFile(path) as archive:
            self.members = {
                name.partition("/")[2]: archive.read(name) for name in archive.namelist()
            }

    def json(self, member: str = MODEL) -> Any:
        return json.loads(self.members[member])

    def write(
        self,
        changed: Mapping[str, bytes] | None = None,
        *,
        without: Sequence[str] = (),
        method: int = zipfile.ZIP_STORED,
    ) -> Path:
        """Writes the file with other members."""
        path = self.folder / "bad.pt2"
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in {**self.members, **(changed or {})}.items():
                if name not in without:
                    archive.writestr(f"good/{name}", data)
        return path

    def changed(self, member: str, place: Sequence[Any], value: Any) -> Path:
        """Writes the file with another value in a JSON member."""
        return self.write({member: _dumped(replaced(self.json(member), place, value))})

    def edited(self, member: str, edit: Callable[[Any], Any]) -> Path:
        """Writes the file with an edited JSON member."""
        value = self.json(member)
        edit(value)
        return self.write({member: _dumped(value)})

    def evil(self) -> bytes:
        """A file of torch.save that makes the mark."""
        stream = io.BytesIO()
        torch.save({"a": Touch(self.mark)}, stream)
        return stream.getvalue()

    def code(self) -> str:
        """Python code that makes the mark."""
        return f"__import__('os').system('touch {self.mark}')"


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the places of all keys and plain values; a key's place ends in a tuple of it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, (key,))
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*at, number))
    else:
        yield at


def kind_of_place(place: Sequence[Any]) -> str:
    """Returns what places of equal meaning share."""
    names = ["*" if isinstance(step, int) else str(step) for step in place]
    for table in ("tensor_values", "sym_int_values", "range_constraints", "config"):
        if table in names[:-1]:
            at = names.index(table) + 1
            names[at] = "(*)" if names[at].startswith("(") else "*"
    return "/".join(names)


def replaced(value: Any, place: Sequence[Any], new: Any) -> Any:
    """Returns a value with another one, or another key, at a place."""
    found = copy.deepcopy(value)
    here = found
    for step in place[:-1]:
        here = here[step]
    last = place[-1]
    if isinstance(last, tuple):
        here[new] = here.pop(last[0])
    else:
        here[last] = new
    return found
