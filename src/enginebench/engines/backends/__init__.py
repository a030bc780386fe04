"""Check, build and verify engines, one folder for each runtime; the modules that load and run them are in `engines`."""
