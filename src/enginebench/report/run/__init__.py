"""A run in every format: one table, the same sentences, for terminal, markdown, CSV, page and pictures.

Lives here: from the rows of a run to text and charts. May not be here: verdicts and rankings (`stats`).
"""
