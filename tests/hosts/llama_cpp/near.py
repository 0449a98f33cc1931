#!/usr/bin/env python3
"""near.py STOCK WITH BOUND [routed]: logits that another processor has rounded, but not others.

BOUND: of every row's difference, relative to its size. `routed`: half of the rows keep to it, and each to ten times
as much, as rounding may move a token's routing between two experts that are nearly as likely.
"""
import array
import math
import sys

from make_gguf import VOCABULARY


def rows(path):
    values = array.array("f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return [values[i:i + VOCABULARY] for i in range(0, len(values), VOCABULARY)]


def error(stock, other):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(stock, other)) / sum(a * a for a in stock))


stock, other, bound = rows(sys.argv[1]), rows(sys.argv[2]), float(sys.argv[3])
if [len(row) for row in stock] != [len(row) for row in other] or not stock:
    sys.exit(f"{len(other)} rows of logits, not {len(stock)}")
errors = sorted(error(*pair) for pair in zip(stock, other))
if any(math.isnan(e) for e in errors):
    sys.exit("logits that are no number")
routed = sys.argv[4:] == ["routed"]
if not (errors[len(errors) // 2 if routed else -1] < bound and errors[-1] < 10 * bound):
    share = "half" if routed else "all"
    sys.exit(f"relative errors of rows: {', '.join(f'{e:.4f}' for e in errors)}; {share} take less than {bound}")
