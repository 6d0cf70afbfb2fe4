"""ONNX files as they are: read, checked, listed, cut and written."""
