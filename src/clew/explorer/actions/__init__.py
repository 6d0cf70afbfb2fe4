"""What the page can have done: measure, try a schedule. Each a function of a `Session`."""
