"""Annex: an INT8 network as gateware, its integer reference, simulation, host driver, and the latency budget."""
