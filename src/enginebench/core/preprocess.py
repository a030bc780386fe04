"""Compare how the inputs of two artifacts are preprocessed, by hashes."""

# In place of a hash, where the user's own array replaced a picture: its preprocessing is unknown.
EXTERNAL = "external"


def is_known(preprocess_sha256: str | None) -> bool:
    """Whether it is the hash of a Preprocess."""
    return preprocess_sha256 not in (None, "", EXTERNAL)


def differ(a: str | None, b: str | None) -> bool:
    """Return whether both are known and differ."""
    return is_known(a) and is_known(b) and a != b


def shorten(preprocess_sha256: str | None) -> str:
    """The first digits of the hash: enough to tell two hashes apart in a message."""
    return str(preprocess_sha256)[:12]
