"""Turns what the user named into artifacts: models, files, stored rows, sides of a comparison.

Lives here: finding, exporting, quantizing and opening sources, and scratch folders for them. May not be here:
measuring, and what only one verb needs.
"""
