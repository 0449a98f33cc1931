#!/usr/bin/env python3
"""A host in Python with weights of its own: a quarter of the experts in memory, eight steps of
decoding, then all of them. examples/c_host, hello_layer, rust and go do the same and print the
same."""
import array

import moert

HIDDEN = 64
M = 0xFFFFFFFF


def value(layer, expert, part, index):
    """A formula instead of a file: in [-1, 1), exact in fp32."""
    h = ((layer * 73856093) ^ ((expert + 1) * 19349663) ^ ((part + 1) * 83492791) ^
         (index * 2654435761)) & M
    h ^= h >> 16
    h = h * 0x7feb352d & M
    h ^= h >> 15
    h = h * 0x846ca68b & M
    h ^= h >> 16
    return ((h >> 8) - 8388608) / 8388608


PARTS = {"gate_proj": 0, "up_proj": 1, "down_proj": 2, "router": 3}


def read(layer, expert, part, first_row, rows, cols):
    """Rows of a matrix, whenever an expert is needed."""
    scale = 1.0 if part == "router" else 0.125
    first = first_row * cols
    return [scale * value(layer, expert, PARTS[part], first + i) for i in range(rows * cols)]


def main():
    layers = [moert.Source.layer(model_layer=l, num_experts=8, top_k=2, hidden=HIDDEN,
                                 intermediate=48, renormalize=1) for l in range(2)]
    source = moert.Source.from_weights("tiny", layers, read)
    engine = moert.Engine(source, budget=0.25, virtual_clock=True)

    y = array.array("f", bytes(4 * HIDDEN))
    for token in range(8):
        x = array.array("f", (value(99, 0, 0, token * HIDDEN + i) for i in range(HIDDEN)))
        with engine.step("decode", rows=1) as step:
            for layer in range(engine.layers):
                step.forward(layer, x, y)
                for i in range(HIDDEN):
                    x[i] += y[i]  # the host's residual stream
        print(f"token {token}: {x[0]:.6f} {x[1]:.6f} {x[2]:.6f}")

    s = engine.stats()
    print(f"lookups {s.lookups}, hits {s.hits_resident}, loads {s.loads}, evictions {s.evictions}, "
          f"budget kept: {'yes' if s.peak_bytes <= s.budget_bytes else 'no'}")
    try:
        engine.set_budget(1)
    except moert.Error as refused:
        print(f"one byte: {refused.code}")
    engine.set_budget(1.0)  # live


if __name__ == "__main__":
    main()
