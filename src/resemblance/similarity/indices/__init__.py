"""Similarity indices, one file each.

A file is named for its index (`cka_debiased.py` holds `cka-debiased`) and ends with `INDEX`, a
`SimilarityIndex` that says how two kernels become a number and what the index can be computed from.
A new file is found by itself. `registry` has the protocol, and `register_index` for users.
"""
