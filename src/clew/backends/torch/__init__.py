"""PyTorch as a backend: regions run operator by operator in eager mode."""
