"""The features of CPUs and the requirements of native code. Only this folder refers to CPU features
by name.
"""
