"""LLVM text of the native driver, which runs the steps of a program on threads, and of its
sampler.
"""
