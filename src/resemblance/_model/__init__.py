"""What runs: a network, watched at some of its layers and left exactly as it was found.

The one loop that runs a model over data and feeds consumers, and what it is made of: which layers,
how their outputs become vectors, which loss is differentiated, what is put back afterwards. Models
by name, for the command line. May import: `_data`, `_ops`. Private: names here may change.
"""
