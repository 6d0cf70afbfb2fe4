"""Cost models: about how long work takes on a machine, for passes and rules that choose.

A model is arithmetic on sizes and on the machine's table (`clew.machine.costs`); it holds no
figures that belong to a machine.
"""
