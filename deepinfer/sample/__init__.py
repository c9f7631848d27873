"""Choice: what a caller may ask of sampling, and the noise that makes it reproducible.

In: keywords of a person. Out: `SamplingParams`, checked; the noise of a (seed, position).
Does not know: models, devices, requests.
"""
