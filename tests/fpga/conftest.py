"""One cache of compiled designs for the session: each design is compiled once."""

import pytest


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("designs with space é")
