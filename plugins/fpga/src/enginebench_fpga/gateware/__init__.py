"""The Amaranth designs. Only these files and the simulators import amaranth."""
