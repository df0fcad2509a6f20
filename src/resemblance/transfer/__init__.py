"""Transfer: which pretrained network, and which of its layers, fits a new data set.

`recommend` runs `candidates` on `query_samples`, scores their layers (`transferability`: `logme`,
`hscore`, `leep`, kernel ridge) and returns a `recommendation` with the accuracy that a linear probe
is expected to reach. May import: `analysis`, `zoo`.
"""
