"""The CPU backend: compiles primitive functions to native kernels and joins them to segments."""
