"""What a machine can do at best, and how far rows and layers are from it."""
