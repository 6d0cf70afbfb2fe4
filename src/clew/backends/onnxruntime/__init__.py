"""ONNX Runtime as a backend."""
