"""A row as a folder that runs without EngineBench: what stands in it, and how it is written (`as-shipped/`)."""
