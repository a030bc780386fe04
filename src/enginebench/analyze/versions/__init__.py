"""What another build or another version changed, and which version it was.

Lives here: builds and upgrades. May not be here: environments and whatever installs them.
"""
