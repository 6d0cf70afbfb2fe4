"""What may happen to a process: threads, forks, kills, full and foreign disks, little memory, odd
inputs. Results have to be right all the same, or one coded error says why there is none.
"""

from __future__ import annotations

from hostile.processes import damage, disks, forks, inputs, poison, shortages, stops, threads
from hostile.processes.setting import ALL

__all__ = ["ALL", "damage", "disks", "forks", "inputs", "poison", "shortages", "stops", "threads"]
