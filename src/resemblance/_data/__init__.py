"""What a model runs on: whatever the user holds, as batches of samples in a seeded order.

Sources and batches, labels, hashes that tell samples apart, and data sets by name for the command
line. May import: `_ops`. Private: names here may change without notice.
"""
