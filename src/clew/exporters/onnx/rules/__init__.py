"""Rules that write operators as ONNX nodes, by kind; each file mirrors one of `clew.ops`."""
