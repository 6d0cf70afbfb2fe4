"""Measuring: engines that take turns, and what the machine could do at best in those turns."""
