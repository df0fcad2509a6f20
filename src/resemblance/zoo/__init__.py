"""A collection of recorded networks that can be searched: `Zoo`.

`collection` is the zoo itself and `entry` what it knows of a network without reading its file;
`store` is what keeps them, in a folder (`folder_store`) or in Lance tables (`lance_store`);
`kernel_signature`, `nearest_networks` and `exact_scores` find networks like a given one, `descent`
and `family_tree` which were made from which. May import: `similarity`.
"""
