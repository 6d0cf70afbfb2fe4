"""Cost models: estimates of the time of work on a machine, for passes and rules.

A model is arithmetic on sizes and on the machine's table (`clew.machine.costs`); it contains no
machine-specific figures.
"""
