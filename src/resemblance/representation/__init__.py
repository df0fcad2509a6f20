"""What a pass leaves: the frozen summary of one network on one data set, and its file.

`Representation` and the records it is made of, the file format, and merging shards. Everything else
either makes one or reads one. May import: `_ops`.
"""
