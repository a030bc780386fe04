"""Races of settings, and precision by layer: who is dropped, who won, where the line of graphs goes.

Lives here: decisions from figures. May not be here: anything that measures, or proposes settings.
"""
