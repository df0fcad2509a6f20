"""Data sets as batches of samples in a seeded order.

`make_source` reads whatever the user holds (tensors, data sets, loaders, streams) into `sources`;
`batches` handles nested batches and labels, `text` language data, `sample_hashes` recognises the
same samples again, and `load_data` resolves the names of the command line. May import: `_ops`.
Private.
"""
