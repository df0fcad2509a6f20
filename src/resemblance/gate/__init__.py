"""A gate: whether a copy keeps to thresholds, beyond what chance could have made of it.

`check` for two recordings. May import: `similarity`, and what that may.
"""
