"""Engine to Measurement: the timed loop, stopping rules, and what the machine did meanwhile."""
