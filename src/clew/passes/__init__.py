"""Graph passes, one a file, and the manager that runs them."""
