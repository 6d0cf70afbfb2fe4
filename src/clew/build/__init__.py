"""Compiles a module for concrete sizes to kernels, native code and a program."""
