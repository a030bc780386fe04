"""What another build or another version changed, and which version it was.

Lives here: builds, upgrades, bisection. May not be here: environments and whatever installs them.
"""
