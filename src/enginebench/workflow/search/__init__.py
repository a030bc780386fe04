"""`tune`: what may be set, who proposes settings, and the race between them."""
