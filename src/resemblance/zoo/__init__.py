"""A searchable collection of recorded networks: `Zoo`.

`zoo` has the class and `entry` what it knows of a network without reading its file. `folder_store`
(with `sqlite_index`) and `lance_store` (with `lance_tables`) keep the data,
`signature` and `search` find similar networks, `descent` and `family_tree` relatives. May import:
`similarity`.
"""
