"""The release gate: does a copy meet its thresholds, beyond sampling error?

`check` judges `thresholds` by the confidence bounds of `bounds`, in `layer_thresholds`,
`output_thresholds` and `embedding_thresholds`, and returns a `verdict`. May import: `similarity`.
"""
