"""What else can be read from a network on data, beside its likeness to another.

How much it must adapt, classification without training, and the rival measures Task2Vec and
Fisher-Rao. May import: `recording`, `similarity`, and what those may.
"""
