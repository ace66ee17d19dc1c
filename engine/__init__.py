"""The inference engine: scheduler, paged KV cache, model runner. It knows nothing of the app.

Read it in this order: `request`, `block_pool`, `scheduler` (what one step decides), `trace` (the record
of it), `attention` and `runner` (what the model computes), `core` (the loop that ties them).
"""
