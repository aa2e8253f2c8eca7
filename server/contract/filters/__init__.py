"""Filters and orders of lists of conversations, in a subset of the filter language of Google's AIP-160 and AIP-132.

`syntax` parses a filter into restrictions such as `title:"draft"`, which AND, OR and NOT connect. `fields` converts
each restriction to a condition that the store evaluates. `order_by` parses orders.
"""
