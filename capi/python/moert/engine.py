"""Experts under one byte budget, and passes over them."""
import ctypes as c
import re
import threading

from . import _c, records, sizes
from ._c import LayerSpec, lib
from .arrays import FLOATS, matrix
from .errors import Error, Handle, check

_ALL = 2**62  # bytes that hold every record


def _engine_options(*, budget=1.0, strategy=None, backend="cpu", device=0, max_tokens=512,
                    threads=0, io_threads=None, host_budget=None, numerics="bf16",
                    virtual_clock=False, link_gbps=0.0, cpus=None, kernels=None, profile=None,
                    trace_path=None, timeline_path=None, trace_replace=False, shard=None,
                    numa_node=None, promise=None):
    o = _c.init(_c.EngineOptions)
    for name, value in (("strategy", strategy), ("cpus", cpus), ("kernels", kernels),
                        ("profile", profile), ("trace_path", trace_path),
                        ("timeline_path", timeline_path), ("promise", promise)):
        if value is not None:
            setattr(o, name, str(value).encode())
    o.budget_bytes, o.budget_fraction = sizes.budget(budget)
    if host_budget is not None:
        o.host_budget_bytes = _ALL if host_budget == "all" else sizes.budget(host_budget)[0]
    if io_threads is not None:
        o.io_threads = io_threads
    o.max_tokens_per_forward, o.threads = max_tokens, threads
    for name, value, legal in (("numerics", numerics, _c.NUMERICS),
                               ("backend", backend, _c.BACKENDS)):
        if value not in legal:
            raise ValueError(f"{name} is {value!r}, legal are {', '.join(legal)}")
        setattr(o, name, legal[value])
    o.device = device
    o.trace_replace = int(trace_replace)
    o.clock = _c.CLOCK_VIRTUAL if virtual_clock else _c.CLOCK_WALL
    o.link_gbps = link_gbps
    if numa_node is not None:
        o.numa_node = numa_node
    if shard is not None:
        o._kept = records.shard(**shard)  # what o.shard points to
        o.shard = c.addressof(o._kept)
    return o


# Schemes whose activations are not fixed: w4a16_g128, w8a16_g-1, ... but not those that are kept
# only for files which come in them.
_TAKES_INT8 = re.compile(r"(w[238]a16_g(-1|\d+)|w4a16_g(-1|128))(_asym)?")


def _refuse_int8_without_effect(source, backend):
    """An option that changes nothing is an error: whoever sets it believes that it does."""
    if backend == _c.BACKENDS["cuda"]:
        raise ValueError("numerics is 'int8', which the CPU's products alone take; legal on cuda "
                         "are 'bf16' and 'fp8'")
    if not any(_TAKES_INT8.fullmatch(name) for name in source.schemes()):
        raise ValueError("numerics is 'int8', which has no effect on experts in "
                         f"{', '.join(source.schemes())}: take 'bf16' or 'f32', or quantize the "
                         "experts, to w4a16_g128 for example")


def plan(source, **options):
    """What an engine would take, as Memory; nothing is allocated. options: those of Engine."""
    value = _c.init(_c.Memory)
    o = _engine_options(**options)
    check(lib.moert_memory_plan, source._handle, c.byref(o), c.byref(value))
    return value


class Engine(Handle):
    """An engine owns the experts of one model.

    budget: bytes (an int, "8GiB") for everything it holds, or a share of the routed experts (a
    float in (0, 1], "25%") with fixed parts added. backend: "cpu", "cuda" or "auto"; device: a CUDA
    ordinal. max_tokens: rows of the largest layer call. host_budget: CUDA, bytes of pinned host
    memory; "all": it holds every expert, read when the engine opens, and the device can serve
    misses itself. numerics: how activations enter the products, "bf16", "f32", "int8" or
    "fp8". shard: a part of every layer, whose output is a partial sum: a dict of moert_shard's fields
    (first_expert, num_experts, first_channel, num_channels, shared_experts), with `experts`, of
    each layer a list, in place of the range. The others are those of moert_engine_options."""
    _destroy = lib.moert_engine_destroy

    def __init__(self, source, **options):
        if not isinstance(source, Handle):
            raise TypeError(f"source is {source!r}; a moert.Source is wanted: Source.open(DIR)")
        o = _engine_options(**options)
        if o.numerics == _c.NUMERICS["int8"]:
            _refuse_int8_without_effect(source, o.backend)
        if o.numerics == _c.NUMERICS["fp8"] and "fp8_b128" not in source.schemes():
            raise ValueError("numerics is 'fp8', which has no effect on experts in "
                             f"{', '.join(source.schemes())}: take 'bf16'; experts in fp8_b128 "
                             "are multiplied in fp8")
        handle = c.c_void_p()
        check(lib.moert_engine_create, source._handle, c.byref(o), c.byref(handle))
        super().__init__(handle)
        self._source = source
        self.max_tokens = o.max_tokens_per_forward
        self.device = o.device if self.backend == "cuda" else None

    @property
    def backend(self):
        """"cpu" or "cuda"."""
        return {_c.BACKENDS["cuda"]: "cuda"}.get(lib.moert_engine_backend(self._handle), "cpu")

    @property
    def layers(self):
        """MoE layers."""
        return lib.moert_engine_layer_count(self._handle)

    def layer(self, index):
        """The LayerSpec of a layer."""
        spec = _c.init(LayerSpec)
        check(lib.moert_engine_layer, self._handle, index, c.byref(spec))
        return spec

    @property
    def strategy(self):
        return lib.moert_engine_strategy(self._handle).decode()

    @property
    def promise(self):
        """"exact", "faithful" (rounded as two processors do) or "lossy"."""
        return lib.moert_engine_promise(self._handle).decode()

    @property
    def exact(self):
        """True: the output is the same at any budget and thread count."""
        return bool(lib.moert_engine_exact(self._handle))

    @property
    def graph_safe(self):
        """True: layer calls of any number of rows may be recorded into a CUDA graph."""
        return bool(lib.moert_engine_graph_safe(self._handle))

    def graph_needs(self):
        """What recording layer calls into CUDA graphs asks of the host, as GraphNeeds: eager_every,
        max_rows (0: any), and where they cannot be recorded the obstacle."""
        value = _c.init(_c.GraphNeeds)
        check(lib.moert_engine_graph_needs, self._handle, c.byref(value))
        return value

    def set_budget(self, budget):
        """Live; evicts to fit before it returns."""
        check(lib.moert_engine_set_budget, self._handle, *sizes.budget(budget))

    def stats(self):
        """The counters of moert_stats; metrics() has all, hit_ratio() what is most asked for."""
        value = _c.init(_c.Stats)
        check(lib.moert_engine_stats, self._handle, c.byref(value))
        return value

    def metrics(self):
        """Every metric of one snapshot: {name: value} (docs/reference/metrics.md)."""
        found = {}
        visit = _c.VisitMetric(lambda _, name, value: found.__setitem__(name.decode(), value))
        check(lib.moert_metrics_visit, self._handle, visit, None)
        return found

    def hit_ratio(self):
        s = self.stats()
        return (s.hits_resident + s.hits_prefetched) / s.lookups if s.lookups else 1.0

    def memory(self):
        """What the budget pays for, as Memory."""
        value = _c.init(_c.Memory)
        check(lib.moert_engine_memory, self._handle, c.byref(value))
        return value

    def residency(self, layer):
        """A state for each expert: 0 absent, 1 arriving, 2 low version, 3 high version."""
        states = (c.c_uint8 * self.layer(layer).num_experts)()
        check(lib.moert_engine_residency, self._handle, layer, states, len(states))
        return list(states)

    def prefetch(self, layer, experts):
        """These experts of a layer are coming, best first."""
        check(lib.moert_engine_prefetch, self._handle, layer,
              (c.c_int32 * len(experts))(*experts), len(experts))

    def close_trace(self):
        check(lib.moert_engine_close_trace, self._handle)

    def _predictor(self, predict_next):
        """predict_next(layer, partial, next_input) as moert.h has it: both are flat arrays of
        floats, the second to be filled; anything but True: cannot tell."""
        def call(_, layer, partial, next_input):
            try:
                tensors = [p.contents for p in (partial, next_input)]
                arrays = [c.cast(t.data, c.POINTER(c.c_float * (t.rows * t.cols))).contents
                          for t in tensors]
                return 0 if predict_next(layer, *arrays) is True else _c.INTERNAL
            except Exception:  # must not unwind into C
                return _c.INTERNAL
        return _c.PredictNext(call)

    def step(self, phase, rows, request_ids=None, predict_next=None, stream=None, token_ids=None):
        """Opens a step of `rows` tokens; phase is "prefill" or "decode". stream: CUDA, the address
        of the stream that orders the step's calls. predict_next: see _predictor. token_ids: one a
        row, for layers that route by them."""
        options = _c.init(_c.StepOptions)
        options.rows, options.stream = rows, stream
        callback = None
        if predict_next is not None:
            callback = options.predict_next = self._predictor(predict_next)
        if phase not in _c.PHASES:
            raise ValueError(f"phase is {phase!r}, legal are {', '.join(_c.PHASES)}")
        options.phase = _c.PHASES[phase]
        if request_ids is not None:
            if len(request_ids) != rows:
                raise ValueError(f"{len(request_ids)} request ids for {rows} rows")
            request_ids = (c.c_int64 * rows)(*request_ids)  # alive until the call has copied it
            options.request_ids = c.addressof(request_ids)
        if token_ids is not None:
            if len(token_ids) != rows:
                raise ValueError(f"{len(token_ids)} token ids for {rows} rows")
            token_ids = (c.c_int32 * rows)(*token_ids)
            options.token_ids = c.addressof(token_ids)
        handle = c.c_void_p()
        check(lib.moert_step_begin, self._handle, c.byref(options), c.byref(handle))
        return Step(self, handle, rows, callback)


class Step:
    """One pass over all MoE layers. End it, or use it in a with statement."""

    def __init__(self, engine, handle, rows, callback=None):
        self._engine, self._handle, self.rows = engine, handle, rows
        self._callback = callback  # C has no reference to it
        # Other threads may call the step while one ends it. cancel() waits for no layer call.
        self._calls, self._end = threading.Lock(), threading.Lock()

    def _call(self, function, *arguments):
        with self._calls:
            check(function, self._handle, *arguments)

    def _matrix(self, array, dtypes=FLOATS, writable=False):
        return matrix(array, self.rows, dtypes, writable, self._engine.device)

    def _tensors(self, hidden, out):
        x, y = self._matrix(hidden), self._matrix(out, writable=True)
        if x.cols != y.cols or x.dtype != y.dtype:
            raise ValueError(f"hidden has {x.rows * x.cols} elements, out {y.rows * y.cols}, for "
                             f"{self.rows} rows; their types must be the same")
        return x, y

    def forward(self, layer, hidden, out):
        """out gets what the MoE block adds to the residual stream."""
        x, y = self._tensors(hidden, out)
        self._call(lib.moert_layer_forward, layer, c.byref(x), None, c.byref(y))

    def forward_routed(self, layer, hidden, ids, weights, out, used_ids=None, scores=None,
                       next_scores=None):
        """With the host's routing: [rows, top_k] int32 ids and float32 weights. used_ids, int32 of
        the same shape, gets the experts really used. For strategies that predict or choose by them,
        float32: scores [rows, experts], next_scores [rows, experts of the next layer], predicted."""
        x, y = self._tensors(hidden, out)
        routing = _c.init(_c.Routing)
        routing.ids = self._matrix(ids, (_c.I32,))
        routing.weights = self._matrix(weights, (_c.F32,))
        if used_ids is not None:
            routing.used_ids = self._matrix(used_ids, (_c.I32,), writable=True)
        if scores is not None:
            routing.scores = self._matrix(scores, (_c.F32,))
        if next_scores is not None:
            routing.next_scores = self._matrix(next_scores, (_c.F32,))
        self._call(lib.moert_layer_forward, layer, c.byref(x), c.byref(routing),
              c.byref(y))

    def fetch(self, layer, ids, next_scores=None, weights=None, slot_ids=None):
        """Brings the experts that ids, int32 [rows, k], name (-1: none) and pins them, as Slots: for
        hosts whose products are their own. next_scores: [rows, experts of the next layer] float32,
        predicted, for prefetch. weights, float32 like ids: for policies that read them. slot_ids,
        int32 like ids, gets slots in place of experts. On CUDA ids may be a tensor of the engine's
        device, and then weights and slot_ids are: read and written on the step's stream."""
        fetch, slots = _c.init(_c.Fetch), _c.init(_c.Slots)
        fetch.ids = self._matrix(ids, (_c.I32,))
        if next_scores is not None:
            fetch.next_scores = self._matrix(next_scores, (_c.F32,))
        if weights is not None:
            fetch.weights = self._matrix(weights, (_c.F32,))
        if slot_ids is not None:
            fetch.slot_ids = self._matrix(slot_ids, (_c.I32,), writable=True)
        self._call(lib.moert_layer_fetch, layer, c.byref(fetch), c.byref(slots))
        return records.Slots(self, layer, self._engine.layer(layer).num_experts, slots)

    def cancel(self):
        """From any thread: the layer call in progress and later ones fail with CANCELLED."""
        with self._end:
            check(lib.moert_step_cancel, self._handle)

    def end(self):
        """Raises the step's first error."""
        with self._calls:
            with self._end:
                handle, self._handle = self._handle, None
            if handle is not None:
                check(lib.moert_step_end, handle)

    def abandon(self):
        """Ends a step whose errors are already on their way."""
        try:
            self.end()
        except Error:
            pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.end()
        else:
            self.abandon()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.abandon()
