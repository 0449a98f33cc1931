"""Forward passes of a torch model as steps of an engine."""
import itertools
import threading
import weakref

import torch

# Passes by number: what a custom operator can name.
_ALL = weakref.WeakValueDictionary()
_numbers = itertools.count(1)

# Up to so many tokens a sequence, a pass is decoding: one token, or drafted ones to be verified.
_DECODE_LENGTH = 8


def named(number):
    """The Passes with this number."""
    return _ALL[number]


class Passes:
    """Turns layer calls that come one after another into steps. A step spans the MoE layers of one
    forward pass; a pass with more rows than the engine takes is several steps side by side. Every
    thread has its own pass."""

    def __init__(self, engine):
        self.engine, self.number = engine, next(_numbers)
        self._layers = engine.layers
        self._thread = threading.local()
        _ALL[self.number] = self

    def forward(self, layer, x, sequences, routing=None):
        """What the experts of a layer add for x [rows, hidden]. sequences: into which the rows
        divide evenly; routing: (ids, weights) [rows, top_k], or None where the library routes."""
        if routing is not None:
            ids, weights = (t if t.is_contiguous() else t.contiguous() for t in routing)
            routing = ids.to(torch.int32), weights.to(torch.float32)
        x = x if x.is_contiguous() else x.contiguous()
        out = torch.empty_like(x)
        if x.shape[0] == 0:
            return out
        mine = self._thread.__dict__
        steps = mine.get("steps")
        if steps is None or layer <= mine["layer"] or mine["rows"] != x.shape[0]:
            steps = self._begin(mine, x, sequences)
        mine["layer"] = layer
        try:
            if len(steps) == 1:
                self._call(steps[0], layer, x, routing, out)
            else:
                self._call_parts(steps, layer, x, routing, out)
        except BaseException:
            self._abandon(mine)
            raise
        if layer + 1 == self._layers:
            mine["steps"] = None
            for step in steps:
                step.end()
        return out

    @staticmethod
    def _call(step, layer, x, routing, out):
        if routing is None:
            step.forward(layer, x, out)
        else:
            step.forward_routed(layer, x, *routing, out)

    def _call_parts(self, steps, layer, x, routing, out):
        first = 0
        for step in steps:
            part = slice(first, first + step.rows)
            self._call(step, layer, x[part], routing and [t[part] for t in routing], out[part])
            first += step.rows

    def _begin(self, mine, x, sequences):
        self._abandon(mine)  # of a pass that died on its way
        rows, stream = x.shape[0], None
        length = rows // sequences if sequences and rows % sequences == 0 else rows
        requests = [row // length for row in range(rows)]
        if x.device.type == "cuda":
            stream = torch.cuda.current_stream(x.device).cuda_stream
        phase = "decode" if length <= _DECODE_LENGTH else "prefill"
        limit = self.engine.max_tokens
        mine["steps"] = [self.engine.step(phase, len(requests[first:first + limit]),
                                          requests[first:first + limit], stream=stream)
                         for first in range(0, rows, limit)]
        mine["rows"] = rows
        return mine["steps"]

    @staticmethod
    def _abandon(mine):
        steps, mine["steps"] = mine.get("steps"), None
        for step in steps or ():
            step.abandon()
