"""Tensor operations that know nothing of networks.

`gram` and `packing` compute and store kernels, `count_sketch` and `fold` shrink vectors,
`fused_sketch` does so in one read on a GPU, `tensor_hash` hashes tensors, and `devices` moves them.
May import: `_utils`. Private.
"""
