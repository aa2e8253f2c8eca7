"""Filters and orders of lists of conversations, in a subset of the filter language of AIP-160 and AIP-132.

`syntax` parses a filter into restrictions, which AND, OR and NOT connect. `fields` converts each restriction to a
condition of the store. `order_by` parses orders.
"""
