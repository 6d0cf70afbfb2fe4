"""ONNX's own backend tests (`onnx.backend.test`) through `clew.compile`.

`cases.py` has the cases, `running.py` compiles and runs one and compares as ONNX's runner does,
`ratchet.py` the file of what passes, `pools.py` processes that may be killed by what they run,
`table.py` what is printed. `tools/backend_suite.py` is the command.
"""
