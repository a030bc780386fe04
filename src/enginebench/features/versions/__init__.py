"""Other versions of a runtime: environments, what an upgrade changed, and which version it was."""
