"""`record`: the consumers that turn a pass over a model into a Representation.

May import: `_model`, `representation`, and what those may; never `similarity`, which reads what is
made here and nothing else.
"""
