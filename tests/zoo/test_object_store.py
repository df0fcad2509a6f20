"""A zoo in an object store: what differs from one in a folder of tables.

What zoos of every kind must do is in test_zoo.py, which runs on an object store as well.
"""

from __future__ import annotations

import urllib.request
import uuid

import pytest

import resemblance as rs
from resemblance.errors import DataError, FormatError
from zoo_workers import tiny


@pytest.fixture
def prefix():
    return uuid.uuid4().hex


def ask(address, content=None):
    """What the server answers, which only looks whether somebody signed."""
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/s3/x"}
    method = "GET" if content is None else "PUT"
    asked = urllib.request.Request(address, content, signed, method=method)
    with urllib.request.urlopen(asked) as answer:
        return answer.read()


def stored(object_store, bucket, prefix):
    """Keys of the objects under a prefix."""
    text = ask(f"{object_store}/{bucket}?list-type=2&prefix={prefix}/").decode()
    return [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]


def test_recordings_are_objects_in_the_bucket_and_nowhere_else(
    object_store, bucket, prefix, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with rs.Zoo(f"lance:s3://{bucket}/{prefix}") as zoo:
        zoo.add_all(map(tiny, range(3)))
    keys = stored(object_store, bucket, prefix)
    for table in ("entries", "layers"):
        assert any(key.startswith(f"{prefix}/{table}.lance/data/") for key in keys)
    assert list(tmp_path.iterdir()) == []


def test_networks_are_searched_there(bucket, prefix):
    with rs.Zoo(f"lance:s3://{bucket}/{prefix}") as zoo:
        zoo.add_all(map(tiny, range(4)), tags=["a"])
        found = zoo.search("net 0", limit=2)
        assert (len(found), found.looked_at) == (2, 3)
        assert len(zoo.search(tiny(1), tag="a", limit=1)) == 1


def test_a_damaged_object_is_told_and_not_served(object_store, bucket, prefix):
    place = f"lance:s3://{bucket}/{prefix}"
    with rs.Zoo(place) as zoo:
        zoo.add(tiny(0))
    (key,) = (x for x in stored(object_store, bucket, prefix) if "layers.lance/data/" in x)
    address = f"{object_store}/{bucket}/{key}"
    content = bytearray(ask(address))
    content[len(content) // 3] ^= 0x10
    ask(address, bytes(content))
    with rs.Zoo(place) as zoo:
        with pytest.raises(FormatError, match="entry 'net 0'"):
            zoo.get("net 0")
        assert [damage.state for damage in zoo.verify()][-1] == "damaged"


def test_a_bucket_that_is_not_there_is_told_in_a_line(bucket):
    with pytest.raises(DataError, match=r"cannot reach lance:s3://nowhere/zoo .*credentials") as at:
        rs.Zoo("lance:s3://nowhere/zoo").add(tiny(0))
    assert len(str(at.value)) < 600
