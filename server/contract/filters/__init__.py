"""Filters and orders of lists of conversations, in a subset of the filter language of AIP-160 and AIP-132.

`syntax` reads a filter as restrictions connected by AND, OR and NOT, `fields` says what each restriction means, and
`order_by` reads orders. The result is a condition of the store.
"""
