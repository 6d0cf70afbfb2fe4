"""ONNX Runtime as a backend: its CPU provider runs regions in the host's memory.

Inputs are read where they are. Results are arrays over the memory that the engine allocated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime

from clew.backends.onnx_engine import Array, OnnxEngine, Session
from clew.backends.onnxruntime.limits import wrong
from clew.ir.expr import Call

_ERRORS_ONLY = 3
_PROVIDERS = ("CPUExecutionProvider",)


class OnnxRuntime(OnnxEngine):
    """Runs regions as sessions of ONNX Runtime, with the program's number of threads."""

    name = "onnxruntime"

    @staticmethod
    def version() -> str:
        return str(onnxruntime.__version__)

    def wrong(self, call: Call) -> str:
        return wrong(call)

    def session(self, model: bytes) -> Session:
        made = self._made(model, self.threads)
        inputs = [i.name for i in made.get_inputs()]
        outputs = [o.name for o in made.get_outputs()]

        def run(arrays: Sequence[Array]) -> list[Array]:
            found = made.run(outputs, dict(zip(inputs, arrays, strict=True)))
            return list(map(np.asarray, found))

        return run

    def accepts(self, model: bytes) -> str:
        try:
            self._made(model, 1)
        except Exception as error:  # its errors have no common base
            return str(error).strip().splitlines()[0]
        return ""

    @staticmethod
    def _made(model: bytes, threads: int) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        # Threads that spin between calls would take the cores from the program's other regions.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Otherwise, products with weights of a few bits round their data to 8 bits.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        return onnxruntime.InferenceSession(model, options, providers=list(_PROVIDERS))
