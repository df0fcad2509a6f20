"""Recording: one pass over a model, accumulated into a Representation.

`record`, `record_arrays` and `record_named` are the entries, `config` holds the options;
`accumulators`, `layer_accumulator` and `gram_blocks` add up what it shows, `checkpoints` and
`distributed` resume and share it. May import: `_models`, `representation`; never `similarity`.
"""
