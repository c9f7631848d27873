"""The model room: the numbers of a checkpoint, its tensors, and the forward pass on one page.

In: config.json, shards, a Batch. Out: hidden rows and logits.
Does not know: devices, kernels, requests.
"""
