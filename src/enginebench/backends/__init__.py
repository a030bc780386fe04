"""Turns artifacts into engines: one file per engine, and the registry, which alone imports them."""
