"""ONNX Runtime's own operators (`com.microsoft`): schemas and converters."""
