"""Cost models: estimates of the time of work on a machine, for passes and rules.

A model is arithmetic on sizes and on the machine's table (`clew.machine.costs`). The thresholds by
which passes and rules choose are in `clew.cost.policy`; a model contains no figures of its own.
"""
