"""Requests under arrivals, and the highest rate that holds.

Lives here: queueing, the search for a rate. May not be here: what sends requests or reads a clock.
"""
