"""The model room: the numbers of a checkpoint, its tensors, and the forward pass on one page."""
