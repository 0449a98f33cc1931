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


def _stream(x):
    """The address of the stream that x's device works on now; None on the CPU. torch.cuda's own
    current_stream takes as long as the rest of a call here."""
    return torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else None


class _Pass:
    """Layer calls that come one after another: a step, or several side by side where there are more
    rows than the engine takes."""

    def __init__(self, engine, rows, sequences, stream):
        self.rows, self.stream, self.layer = rows, stream, -1
        length = rows // sequences if sequences and rows % sequences == 0 else rows
        requests = [row // length for row in range(rows)]
        self._phase = "decode" if length <= _DECODE_LENGTH else "prefill"
        self._engine = engine
        self._requests = [requests[first:first + engine.max_tokens]
                          for first in range(0, rows, engine.max_tokens)]
        self.begin()

    def begin(self):
        self.steps = [self._engine.step(self._phase, len(some), some, stream=self.stream)
                      for some in self._requests]

    def takes(self, layer, rows, stream):
        """Whether such a layer call is its next one."""
        return layer > self.layer and rows == self.rows and stream == self.stream

    def call(self, layer, work):
        """work(step, rows) for each step: rows is a slice, None for all of them."""
        self.layer = layer
        if len(self.steps) == 1:
            work(self.steps[0], None)
            return
        first = 0
        for step in self.steps:
            work(step, slice(first, first + step.rows))
            first += step.rows

    def end(self):
        for step in self.steps:
            step.end()

    def abandon(self):
        for step in self.steps:
            step.abandon()


class Passes:
    """Turns layer calls that come one after another into passes, one for each forward pass of the
    model. Every thread has its own.

    A pass begins with its first layer call and ends behind the last layer's. Where layer calls are
    recorded into a CUDA graph, a replay makes no calls: then hold() and release() stand in front of
    the first and behind the last layer, outside the graph."""

    def __init__(self, engine):
        self.engine, self.number = engine, next(_numbers)
        self._layers, self._exact = engine.layers, engine.exact
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

        tensors = (x, out) if routing is None else (x, *routing, out)

        def work(step, rows):
            some = tensors if rows is None else [t[rows] for t in tensors]
            (step.forward if routing is None else step.forward_routed)(layer, *some)
        self._call(layer, x, sequences, work)
        return out

    def products(self, layer, x, sequences, product):
        """The same where the product is the host's: product(step, rows) returns rows of the output."""
        parts = []
        self._call(layer, x, sequences, lambda step, part: parts.append(product(step, part)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _call(self, layer, x, sequences, work):
        if x.shape[0] == 0:
            return
        mine = self._thread.__dict__
        run = self._pass_of(mine, layer, x, sequences)
        try:
            run.call(layer, work)
        except BaseException:
            _abandon(mine, "running")
            _abandon(mine, "held")
            raise
        if layer + 1 == self._layers and run is not mine.get("held"):
            mine["running"] = None
            run.end()
            self._renew(mine)

    def _pass_of(self, mine, layer, x, sequences):
        rows, stream = x.shape[0], _stream(x)
        held, running = mine.get("held"), mine.get("running")
        for run in (held, running):
            if run is not None and run.takes(layer, rows, stream):
                return run
        _abandon(mine, "running")  # of a pass that died on its way
        if held is not None and held.stream == stream:
            _abandon(mine, "held")
        mine["running"] = _Pass(self.engine, rows, sequences, stream)
        return mine["running"]

    def hold(self, x, sequences):
        """Opens the pass of what follows on the current stream: layer calls, or a replay of them.
        x: the rows of one."""
        mine = self._thread.__dict__
        _abandon(mine, "running")
        _abandon(mine, "held")
        mine["held"] = _Pass(self.engine, x.shape[0], sequences, _stream(x))

    def release(self):
        """Ends it."""
        held, self._thread.__dict__["held"] = self._thread.__dict__.get("held"), None
        if held is not None:
            held.end()

    def _renew(self, mine):
        """Behind a recording: the replay that follows lies in a step that has been told of it.
        Engines that are exact do without, since no version changes."""
        held = mine.get("held")
        if held is None or self._exact or not torch.cuda.is_current_stream_capturing():
            return
        held.end()
        held.begin()


def _abandon(mine, which):
    run, mine[which] = mine.get(which), None
    if run is not None:
        run.abandon()
