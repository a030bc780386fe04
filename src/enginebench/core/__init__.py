"""Vocabulary: frozen records, protocols, errors, names, store. Imports nothing of ours."""
