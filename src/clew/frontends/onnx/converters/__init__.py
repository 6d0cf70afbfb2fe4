"""Converters of ONNX's own operators, a file per family."""
