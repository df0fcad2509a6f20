"""The web page of a zoo: `resemblance serve`.

`application` maps addresses to answers, `queries` computes them in processes of the
`worker_pool`, `server` and `security` decide who may ask, and `cache` holds answers. May import:
`views`, `transfer`.
"""

DEFAULT_PORT = 8642
MEBIBYTE = 2**20  # bytes
UPLOAD_LIMIT_MIB = 256
