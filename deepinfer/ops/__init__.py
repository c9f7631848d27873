"""The contract of every operator, and the table that the model calls.

In: nothing but torch. Out: `catalogue.CATALOGUE`, `table.Table`, the values that pass between them.
Does not know: plugins, the model, requests.
"""
