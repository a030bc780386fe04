"""`tune`: what may be set, who proposes settings, the race between them, and precision by layer."""
