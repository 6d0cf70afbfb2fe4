"""Compiled models as libraries with a C interface, for this machine or another.

`export_c` writes an object, an archive, a header, an example and its build files. The native code
is that of the compiled model: its kernels, and the driver that runs a table of them. This package
adds only what Python does in other calls: the tables, laid out as data, and the checks of
arguments.
"""

from clew.libraries.addresses import CodePlace, place_of
from clew.libraries.export import Exported, export_c
from clew.libraries.interface import c_name

__all__ = ["CodePlace", "Exported", "c_name", "export_c", "place_of"]
