"""A store that speaks S3, on this machine: moto, which answers conditional puts as S3 does.

It is installed by `nox -s object_store`, not by the extra `test`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

__all__ = ["BUCKET", "s3_settings"]

BUCKET: Final = "lakes"
_REGION: Final = "us-east-1"


@contextlib.contextmanager
def s3_settings() -> Iterator[dict[str, str]]:
    """Start one with an empty `BUCKET`; what Spark is told of it."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name=_REGION, **keys)
        client.create_bucket(Bucket=BUCKET)
        found = {
            "endpoint": endpoint,
            "endpoint.region": _REGION,
            "path.style.access": "true",
            "access.key": "key",
            "secret.key": "secret",
        }
        yield {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items()}
    finally:
        server.stop()
