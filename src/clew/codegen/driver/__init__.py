"""LLVM text of the driver: what runs the steps of a program on threads, and its sampler."""
