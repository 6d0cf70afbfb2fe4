"""LiteRT's shapes and results of a TFLite file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litert_runs import Array, Refused, interpreter, outputs


def shapes_of(data: bytes, tensors: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the shapes of tensors by their numbers. Errors: Refused."""
    made = interpreter(data)
    try:
        made.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise Refused(str(error)) from None
    details = {each["index"]: each for each in made.get_tensor_details()}
    if any(tensor not in details for tensor in tensors):
        raise Refused("a tensor has no shape")
    return [tuple(map(int, details[tensor]["shape"])) for tensor in tensors]


def litert(data: bytes, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the results of a file by name. Errors: Refused."""
    made = interpreter(data)
    names = [each["name"] for each in made.get_output_details()]
    return dict(zip(names, outputs(made, feeds), strict=True))
