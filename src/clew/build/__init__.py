"""Where graph and kernels meet: one concrete module to kernels, native code and a program."""
