"""The native CPU: primitive functions to kernels, segments of them, and their object code."""
