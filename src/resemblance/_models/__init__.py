"""Running a network: hooks at chosen layers, a loss, and a model that is left as it was found.

`run` holds the one loop over the data. `trace`, `auto_layers` and `layer_patterns` choose layers,
`capture` and `layer_outputs` read them, `losses` and `logits` say what is differentiated,
`eval_mode` restores the model, `compile` runs one graph, and `loading` resolves `--model`. May
import: `_data`. Private.
"""
