"""libmoert from Python: a thin binding of the C ABI for evaluation.

    source = moert.Source.open("model-dir")
    engine = moert.Engine(source, budget_fraction=0.25)
    with engine.step("decode", rows=1) as step:
        for layer in range(engine.layers):
            step.forward(layer, x, y)

Arrays are anything with memory of its own: torch CPU tensors (fp32, bf16, fp16), numpy arrays (fp32,
fp16), array.array("f"). They are used in place, [rows, hidden] and contiguous. Calls release the
interpreter's lock, so threads may share an engine. Nothing but the standard library is needed;
moert.transformers replaces the MoE blocks of a transformers model.
"""
import array
import ctypes as c

from . import _c
from ._c import LayerSpec, Memory, Stats, lib

__all__ = ["Engine", "Error", "LayerSpec", "Memory", "Source", "Stats", "Step", "strategies",
           "version"]


class Error(Exception):
    """A failed call: `code` ("INVALID_ARGUMENT"), `origin` (the C function), `message`."""

    def __init__(self, code, origin, message):
        super().__init__(f"{origin}: {code}: {message}")
        self.code, self.origin, self.message = code, origin, message


def _check(function, *arguments):
    error = c.c_void_p()
    code = function(*arguments, c.byref(error))
    if code == 0:
        return
    raised = Error(lib.moert_code_name(code).decode(), lib.moert_error_origin(error).decode(),
                   lib.moert_error_message(error).decode())
    lib.moert_error_destroy(error)
    raise raised


def _memory(array, writable=False):
    """(address, dtype, elements) of an array's memory. `array` has to stay alive."""
    if hasattr(array, "data_ptr"):  # torch
        if array.device.type != "cpu" or not array.is_contiguous():
            raise TypeError(f"a contiguous CPU tensor is wanted, not one of {array.device}")
        names = {"torch.float32": _c.F32, "torch.bfloat16": _c.BF16, "torch.float16": _c.F16}
        if str(array.dtype) not in names:
            raise TypeError(f"{array.dtype}: float32, bfloat16 or float16 is wanted")
        return array.data_ptr(), names[str(array.dtype)], array.numel()
    view = memoryview(array)
    if not view.c_contiguous or view.format not in ("f", "e", "<f", "<e"):
        raise TypeError(f"a contiguous float32 or float16 array is wanted, not '{view.format}'")
    if writable and view.readonly:
        raise TypeError("the output array is read-only")
    dtype = _c.F32 if view.format[-1] == "f" else _c.F16
    if view.readonly:  # ctypes wants a writable buffer to name its address
        import numpy
        return numpy.frombuffer(view, numpy.uint8).ctypes.data, dtype, view.nbytes // view.itemsize
    buffer = (c.c_char * view.nbytes).from_buffer(view)
    return c.addressof(buffer), dtype, view.nbytes // view.itemsize


def version():
    return lib.moert_version_string().decode()


def strategies():
    """Built-in strategies: {name: (summary, key help)}."""
    found = {}
    for index in range(lib.moert_strategy_count()):
        info = _c.init(_c.StrategyInfo)
        _check(lib.moert_strategy_at, index, c.byref(info))
        found[info.name.decode()] = (info.summary.decode(), info.keys.decode())
    return found


class _Handle:
    _destroy = None

    def __init__(self, handle):
        self._handle = handle

    def close(self):
        if getattr(self, "_handle", None):
            type(self)._destroy(self._handle)
            self._handle = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Source(_Handle):
    """Where experts come from. Engines keep their own reference."""
    _destroy = lib.moert_source_destroy

    @classmethod
    def open(cls, model_dir, cache_dir=None):
        """A checkpoint directory as published on Hugging Face."""
        options = _c.init(_c.OpenOptions)
        if cache_dir is not None:
            options.cache_dir = str(cache_dir).encode()
        handle = c.c_void_p()
        _check(lib.moert_source_open, str(model_dir).encode(), c.byref(options), c.byref(handle))
        return cls(handle)

    @classmethod
    def open_pack(cls, pack_dir):
        """An expert pack, as moert-pack writes them."""
        handle = c.c_void_p()
        _check(lib.moert_source_open_pack, str(pack_dir).encode(), c.byref(handle))
        return cls(handle)

    @classmethod
    def from_weights(cls, name, layers, read):
        """Weights of the host's own. layers: a list of Source.layer(...). read(layer, expert, part,
        first_row, rows, cols) returns rows * cols floats (a buffer of float32 or an iterable;
        of "hash_experts" integers); part is one of _c.PARTS, expert -1 the shared one. Called from
        threads of the library."""
        def callback(_, what, failure):
            r = what.contents
            try:
                weights = read(r.layer, r.expert, _c.PARTS[r.part], r.first_row, r.dst.rows,
                               r.dst.cols)
                count = r.dst.rows * r.dst.cols
                kind = "i" if _c.PARTS[r.part] == "hash_experts" else "f"
                if not hasattr(weights, "__getitem__") or isinstance(weights, (list, tuple)):
                    weights = array.array(kind, weights)
                view = memoryview(weights)
                if view.format not in (kind, "<" + kind) or view.nbytes != 4 * count:
                    raise ValueError(f"{count} of '{kind}' are wanted, not {view.nbytes} bytes of "
                                     f"'{view.format}'")
                c.memmove(r.dst.data, view.tobytes(), view.nbytes)
                return 0
            except BaseException as e:  # must not pass through C
                text = f"{type(e).__name__}: {e}".replace("\0", " ")
                lib.moert_failure_set(failure, text.encode())
                return _c.DATA_LOSS

        callbacks = _c.init(_c.SourceCallbacks)
        callbacks.read = _c.ReadCallback(callback)
        callbacks.weights_dtype = _c.F32
        handle = c.c_void_p()
        _check(lib.moert_source_create, name.encode(), (LayerSpec * len(layers))(*layers),
               len(layers), c.byref(callbacks), c.byref(handle))
        source = cls(handle)
        source._callbacks = callbacks  # the engine keeps the source object, that this
        return source

    @staticmethod
    def layer(**fields):
        """A LayerSpec with the library's defaults but for `fields`; routing and activation by
        name."""
        spec = _c.init(LayerSpec)
        for name, value in fields.items():
            if not hasattr(spec, name):
                raise TypeError(f"LayerSpec has no field '{name}'")
            setattr(spec, name, {"routing": _c.ROUTINGS, "activation": _c.ACTIVATIONS}.get(
                name, {}).get(value, value))
        return spec

    @property
    def layers(self):
        return lib.moert_source_layer_count(self._handle)


class Engine(_Handle):
    """Experts under one byte budget, on the CPU backend."""
    _destroy = lib.moert_engine_destroy

    def __init__(self, source, *, strategy=None, budget_bytes=0, budget_fraction=1.0,
                 max_tokens=512, threads=0, numerics="bf16", virtual_clock=False, link_gbps=0.0,
                 trace_path=None):
        o = _c.init(_c.EngineOptions)
        if strategy is not None:
            o.strategy = strategy.encode()
        if trace_path is not None:
            o.trace_path = str(trace_path).encode()
        o.budget_bytes, o.budget_fraction = budget_bytes, budget_fraction
        o.max_tokens_per_forward, o.threads = max_tokens, threads
        o.numerics = _c.NUMERICS[numerics]
        o.clock = _c.CLOCK_VIRTUAL if virtual_clock else _c.CLOCK_WALL
        o.link_gbps, o.backend = link_gbps, _c.BACKEND_CPU
        handle = c.c_void_p()
        _check(lib.moert_engine_create, source._handle, c.byref(o), c.byref(handle))
        super().__init__(handle)
        self._source = source
        self.max_tokens = max_tokens

    @property
    def layers(self):
        """MoE layers."""
        return lib.moert_engine_layer_count(self._handle)

    def layer(self, index):
        spec = _c.init(LayerSpec)
        _check(lib.moert_engine_layer, self._handle, index, c.byref(spec))
        return spec

    @property
    def strategy(self):
        return lib.moert_engine_strategy(self._handle).decode()

    @property
    def exact(self):
        """True: the output is the same at any budget and thread count."""
        return bool(lib.moert_engine_exact(self._handle))

    @property
    def graph_safe(self):
        """True: layer calls may be recorded into a CUDA graph."""
        return bool(lib.moert_engine_graph_safe(self._handle))

    def set_budget(self, bytes=0, fraction=0.0):
        """Live; evicts to fit before it returns."""
        _check(lib.moert_engine_set_budget, self._handle, bytes, fraction)

    def stats(self):
        """The counters of moert_stats; metrics() has all, hit_ratio() what is most asked for."""
        value = _c.init(Stats)
        _check(lib.moert_engine_stats, self._handle, c.byref(value))
        return value

    def metrics(self):
        """Every metric of one snapshot: {name: value} (docs/reference/metrics.md)."""
        found = {}
        visit = _c.VisitMetric(lambda _, name, value: found.__setitem__(name.decode(), value))
        _check(lib.moert_metrics_visit, self._handle, visit, None)
        return found

    def hit_ratio(self):
        s = self.stats()
        return (s.hits_resident + s.hits_prefetched) / s.lookups if s.lookups else 1.0

    def memory(self):
        value = _c.init(Memory)
        _check(lib.moert_engine_memory, self._handle, c.byref(value))
        return value

    def residency(self, layer):
        """A state for each expert: 0 absent, 1 arriving, 2 low version, 3 high version."""
        states = (c.c_uint8 * self.layer(layer).num_experts)()
        _check(lib.moert_engine_residency, self._handle, layer, states, len(states))
        return list(states)

    def prefetch(self, layer, experts):
        """These experts of a layer are coming, best first."""
        _check(lib.moert_engine_prefetch, self._handle, layer,
               (c.c_int32 * len(experts))(*experts), len(experts))

    def close_trace(self):
        _check(lib.moert_engine_close_trace, self._handle)

    def _predictor(self, predict_next):
        """predict_next(layer, partial, next_input) as moert.h has it: both are flat arrays of floats,
        the second to be filled; anything but True: cannot tell."""
        def call(_, layer, partial, next_input):
            try:
                tensors = [p.contents for p in (partial, next_input)]
                arrays = [c.cast(t.data, c.POINTER(c.c_float * (t.rows * t.cols))).contents
                          for t in tensors]
                return 0 if predict_next(layer, *arrays) is True else _c.INTERNAL
            except Exception:  # must not unwind into C
                return _c.INTERNAL
        return _c.PredictNext(call)

    def step(self, phase, rows, request_ids=None, predict_next=None, token_ids=None):
        """Opens a step of `rows` tokens; phase is "prefill" or "decode". predict_next: see
        _predictor. token_ids: for layers that route by them."""
        options = _c.init(_c.StepOptions)
        options.rows = rows
        callback = None
        if predict_next is not None:
            callback = options.predict_next = self._predictor(predict_next)
        options.phase = {"prefill": _c.PREFILL, "decode": _c.DECODE}[phase]
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
        _check(lib.moert_step_begin, self._handle, c.byref(options), c.byref(handle))
        return Step(self, handle, rows, callback)


class Step:
    """One pass over all MoE layers. End it, or use it in a with statement."""

    def __init__(self, engine, handle, rows, callback=None):
        self._engine, self._handle, self.rows = engine, handle, rows
        self._callback = callback  # C has no reference to it

    def _tensors(self, hidden, out):
        source, dtype, count = _memory(hidden)
        target, out_dtype, out_count = _memory(out, writable=True)
        if count != out_count or dtype != out_dtype or count % self.rows != 0:
            raise ValueError(f"hidden has {count} elements, out {out_count}, for {self.rows} rows; "
                             "their types must be the same")
        return [_c.Tensor.of(address, self.rows, count // self.rows, dtype)
                for address in (source, target)]

    def forward(self, layer, hidden, out):
        """out gets what the MoE block adds to the residual stream."""
        x, y = self._tensors(hidden, out)
        _check(lib.moert_layer_forward, self._handle, layer, c.byref(x), None, c.byref(y))

    def forward_routed(self, layer, hidden, ids, weights, out):
        """With the host's routing: rows * top_k ids and weights, flat. Returns the experts really
        used."""
        x, y = self._tensors(hidden, out)
        if len(ids) != len(weights) or len(ids) % self.rows != 0:
            raise ValueError(f"{len(ids)} ids and {len(weights)} weights for {self.rows} rows")
        k = len(ids) // self.rows
        used = (c.c_int32 * len(ids))()
        ids = (c.c_int32 * len(ids))(*ids)
        weights = (c.c_float * len(weights))(*weights)
        routing = _c.init(_c.Routing)
        routing.ids = _c.Tensor.of(c.addressof(ids), self.rows, k, _c.I32)
        routing.weights = _c.Tensor.of(c.addressof(weights), self.rows, k, _c.F32)
        routing.used_ids = _c.Tensor.of(c.addressof(used), self.rows, k, _c.I32)
        _check(lib.moert_layer_forward, self._handle, layer, c.byref(x), c.byref(routing),
               c.byref(y))
        return list(used)

    def cancel(self):
        """From any thread: the layer call in progress and later ones fail with CANCELLED."""
        _check(lib.moert_step_cancel, self._handle)

    def end(self):
        """Raises the step's first error."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _check(lib.moert_step_end, handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.end()
        else:  # its errors are those already on their way
            try:
                self.end()
            except Error:
                pass

    def __del__(self):
        if getattr(self, "_handle", None):
            try:
                self.end()
            except Error:
                pass
