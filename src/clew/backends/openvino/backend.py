"""OpenVINO as a backend: its CPU plugin runs regions in the host's memory.

Inputs are read where they are, and results are written to arrays of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino

from clew.backends.onnx_engine import Array, OnnxEngine, Session
from clew.backends.openvino.limits import wrong
from clew.ir.expr import Call
from clew.support.locks import Lock, once

_DEVICE = "CPU"


@once
def _core() -> openvino.Core:
    return openvino.Core()


class OpenVino(OnnxEngine):
    """Runs regions as compiled models of OpenVINO's CPU plugin, in f32 where the graph is in f32,
    with the program's number of threads.
    """

    name = "openvino"

    @staticmethod
    def version() -> str:
        return str(openvino.__version__)

    def wrong(self, call: Call) -> str:
        return wrong(call)

    def session(self, model: bytes) -> Session:
        properties: dict[str, Any] = {
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            # By default, products with weights of a few bits round their data to 8 bits.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        made = _core().compile_model(_core().read_model(model), _DEVICE, properties)
        request = made.create_infer_request()
        ports = [(o.get_shape(), o.get_element_type().to_dtype()) for o in made.outputs]
        lock = Lock()  # a request runs one call at a time

        def run(arrays: Sequence[Array]) -> list[Array]:
            results = [np.empty(tuple(shape), dtype) for shape, dtype in ports]
            held = list(map(_readable, arrays))  # tensors do not keep them alive
            with lock:
                for number, array in enumerate(held):
                    request.set_input_tensor(number, openvino.Tensor(array, shared_memory=True))
                for number, array in enumerate(results):
                    request.set_output_tensor(number, openvino.Tensor(array, shared_memory=True))
                request.infer()
            return results

        return run

    def accepts(self, model: bytes) -> str:
        try:
            read = _core().read_model(model)
            supported = _core().query_model(read, _DEVICE)
        except Exception as error:  # its errors have no common base
            return str(error).strip().splitlines()[-1]
        missing = [o for o in read.get_ordered_ops() if o.get_friendly_name() not in supported]
        return f"its CPU plugin lacks {missing[0].get_type_name()}" if missing else ""


def _readable(array: Array) -> Array:
    """Returns an array whose memory a tensor can share: contiguous, and not read-only."""
    found = np.asarray(array, order="C")
    found = found.view(found.dtype.str)  # OpenVINO knows one of several equal dtypes of 64 bits
    return found if found.flags.writeable else found.copy()
