"""Analyses of one network on one data set: adaptation, classification, Task2Vec, Fisher-Rao.

`adaptation` and `fisher_rao` read a Representation; `classifier` (with `kernel_ridge`) and
`task2vec` run the network. May import: `recording`, `similarity`.
"""
