"""Requests under arrivals: the server, the rates that are tried, and what was measured at each."""
