"""What a compiled model's time goes into: kernels, operators, layers."""
