"""An S3 server on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from patchsvdd.apps.cluster import storage as places


@contextmanager
def object_store(bucket: str) -> Iterator[fs.FileSystem]:
    """An S3 server with one bucket; its address and keys are in the environment, also for child processes."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    # moto keeps the objects of earlier servers of this process.
    urlopen(Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        places._system.cache_clear()
        try:
            store = fs.S3FileSystem(endpoint_override=f"http://127.0.0.1:{port}", allow_bucket_creation=True)
            store.create_dir(bucket)
            yield store
        finally:
            places._system.cache_clear()
            server.stop()
