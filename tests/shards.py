"""Shards for tests: the same samples as tar files, as Parquet files and as rows in memory."""

from __future__ import annotations

import io
import tarfile

import numpy as np


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def image(colour, size=(9, 7)) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "png")
    return file.getvalue()


def write_tar(path, members, mode="w"):
    """Members are (name, bytes), or a TarInfo for what is no plain file."""
    with tarfile.open(path, mode) as shard:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                shard.addfile(member)
                continue
            name, content = member
            info = tarfile.TarInfo(name)
            info.size = len(content)
            shard.addfile(info, io.BytesIO(content))
    return path


def write_arrays(folder, x, shards=4, labels=None):
    """Vectors as .npy files in tar shards, named by their number in all of them."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(x)), shards)):
        members = []
        for i in part:
            members.append((f"all/{i:05}.npy", npy(x[i])))
            if labels is not None:
                members.append((f"all/{i:05}.cls", str(int(labels[i])).encode()))
        write_tar(folder / f"part-{number:03}.tar", members)
    return folder


def write_parquet(folder, x, files=3, **columns):
    """The same vectors as lists in Parquet files, with the same keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(x)), files)):
        table = {
            "__key__": [f"all/{i:05}" for i in part],
            "x": [x[i].tolist() for i in part],
            **{name: [values[i] for i in part] for name, values in columns.items()},
        }
        arrow = pa.table({**table, "x": pa.array(table["x"], pa.list_(pa.float32()))})
        pq.write_table(arrow, folder / f"part-{number}.parquet", row_group_size=17)
    return folder
