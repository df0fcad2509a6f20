"""The Representation: a frozen summary of one network on one data set, and its file.

`layer`, `outputs` and `embeddings` are its parts, `file_format` and `schema` the file, `merge` the
union of shards. May import: `_ops`.
"""
