"""One cache of compiled designs for the session, each compiled once; and the digits network in INT8, made once."""

import pytest

from enginebench_fpga.verb import find_network_file


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("designs with space é")


@pytest.fixture(scope="session")
def quantized(tmp_path_factory):
    return find_network_file(None, tmp_path_factory.mktemp("ein Netz é"))
