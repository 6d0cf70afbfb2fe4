"""Loop nests to LLVM IR, LLVM IR to objects."""
