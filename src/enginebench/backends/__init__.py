"""Artifact to Engine: one file an engine, and the registry that alone imports them."""
