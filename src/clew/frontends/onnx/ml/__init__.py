"""Operators of `ai.onnx.ml`: schemas of their tables, and converters."""
