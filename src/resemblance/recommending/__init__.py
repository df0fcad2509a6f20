"""Which network of a zoo to start from for new data, and from which layer: `recommend`.

It runs candidates on the data and ranks them by what their features can tell of it. May import:
`analysis`, `zoo`.
"""
