"""Comparison tools: what a platform computes against what it should.

In: a platform, recorded results. Out: reports. Does not know: serving.
"""
