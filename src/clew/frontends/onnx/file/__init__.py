"""ONNX files without an import: read, checked, listed, cut and written."""
