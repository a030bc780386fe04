"""A real S3 server for the stores of sweeps, in this process."""

import os
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")  # clients are cached by their process, with the address of the first server
def s3() -> Iterator[str]:
    """The address of an empty bucket on a server of our own."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        bucket = f"sweeps-{os.urandom(4).hex()}"  # servers of one process share their buckets
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}"
        server.stop()
