"""Similarity of Representations: kernels, indices, estimators, standard errors, chance levels.

`compare` compares two networks, `compare_all` many and `trajectory` the checkpoints of one run.
`agreement` compares predictions, `neighbours` embeddings, `drift` coordinates, and `divergence`
finds the first layer that differs. May import: `representation`; never `recording`, as recordings
may come from anywhere.
"""
