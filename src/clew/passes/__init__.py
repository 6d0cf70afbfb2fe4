"""Graph passes, one per file, and the manager that runs them."""
