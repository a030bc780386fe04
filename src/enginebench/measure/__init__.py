"""Turns engines into measurements: the timed loop, stopping rules, and what the machine did meanwhile."""
