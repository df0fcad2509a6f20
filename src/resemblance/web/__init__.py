"""A zoo as a page that a browser shows: `resemblance serve`.

A map of the zoo, search, pairs, families, recommendations and uploads. May import: `views`,
`recommending`.
"""
