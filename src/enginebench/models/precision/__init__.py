"""Precision as a property of the graph: calibration, casting, explicit Q/DQ, and the checks on what came out."""
