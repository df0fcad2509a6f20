"""Helpers that know nothing of networks: files, hashes, progress, numbers and text for people.

`atomic_files`, `hashing`, `progress`, `validation`, `formatting` and `equality` may be imported
from everywhere and import only `errors`. None of them loads torch.
"""
