"""Disturbances of a process: threads, forks, kills, full and foreign disks, little memory, odd
inputs. Results must still be right, or one coded error must give the reason.
"""

from __future__ import annotations

from hostile.processes import damage, disks, forks, inputs, poison, shortages, stops, threads
from hostile.processes.setting import ALL

__all__ = ["ALL", "damage", "disks", "forks", "inputs", "poison", "shortages", "stops", "threads"]
