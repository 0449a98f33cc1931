#!/usr/bin/env python3
"""near.py STOCK WITH BOUND: logits that another processor has rounded, but not others.

BOUND: of the difference, relative to the size of all logits.
"""
import array
import math
import sys


def read(path):
    values = array.array("f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values


stock, other, bound = read(sys.argv[1]), read(sys.argv[2]), float(sys.argv[3])
if len(stock) != len(other) or not stock:
    sys.exit(f"{len(other)} logits, not {len(stock)}")
error = math.sqrt(sum((a - b) ** 2 for a, b in zip(stock, other)) / sum(a * a for a in stock))
if not error < bound:  # nor a NaN
    sys.exit(f"a relative error of {error}: takes less than {bound}")
