"""`--rewrite`: the expectations become what the commands say now; say in the commit why each changed."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write down what the commands of tests/golden say now")
