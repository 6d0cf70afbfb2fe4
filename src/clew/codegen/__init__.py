"""Compilation of loop nests to LLVM IR, and of LLVM IR to objects."""
