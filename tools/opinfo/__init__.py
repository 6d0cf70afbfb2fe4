"""The operators of PyTorch's own tests (`op_db`) through `from_torch` and `clew.compile`."""
