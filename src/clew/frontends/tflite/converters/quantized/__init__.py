"""Converters that compute on quantized tensors in TFLite's integer arithmetic."""
