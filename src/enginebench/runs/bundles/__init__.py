"""Bundles as a stored row has them: what `bundle.json` says, and how one is opened. Nothing in it is run."""
