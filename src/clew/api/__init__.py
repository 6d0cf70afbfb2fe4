"""The public face of compiled models: `clew.compile`, `clew.load_compiled` and their classes.

They are thin: models are built in `compiling` and served in `serving`, and what reads a compiled
model (`tap`, `profile`, `correlate`, `explorer`) takes a `BuiltModel` and is imported by the
first call. Tools that hand out compiled models (`extraction`, `quantization`, `tuning`, `torch`,
the command line) are clients of this package, as users are.
"""
