"""How alike two Representations are: kernels, indices, estimators, errors, chance.

`compare` for two networks, `compare_all` for many. May import: `representation`, `_ops`; never
`recording`: whatever is compared was recorded before, by anyone.
"""
