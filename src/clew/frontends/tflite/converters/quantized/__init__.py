"""Converters of operators on quantized tensors, which compute with codes as TFLite does."""
