"""Who runs when: requests, cache blocks, the arrays of a step, and the loop.

In: requests with token ids. Out: tokens. Does not know: text, files, hardware.
"""
