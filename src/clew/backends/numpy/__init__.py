"""NumPy as a backend: it takes every operator and runs its reference."""
