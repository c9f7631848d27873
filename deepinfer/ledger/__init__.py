"""How many bytes everything takes, before anything is loaded (engine specification 8).

In: a model's name, settings, ranks. Out: a table, values, or a refusal. Does not know: weights
themselves, kernels, requests.
"""
