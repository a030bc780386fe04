"""Results to files: tables, markdown, CSV, JSON."""
