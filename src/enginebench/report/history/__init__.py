"""Many runs: one table of all stored rows, their trends, and exports for other tools.

Lives here: rendering of a history. May not be here: finding and reading the stored rows (`runs.history`).
"""
