"""ONNX's own backend tests (`onnx.backend.test`) through `clew.compile`.

`cases.py` has the cases; `running.py` compiles and runs one and compares as ONNX's runner does;
`ratchet.py` has the file of passing cases; `pools.py` has processes that a case may crash;
`table.py` prints the results. `tools/backend_suite.py` is the command.
"""
