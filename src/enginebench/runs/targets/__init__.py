"""Turns what the user named into artifacts: models, files, stored rows, sides of a comparison, and scratch folders."""
