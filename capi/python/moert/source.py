"""Where experts come from."""
import array
import ctypes as c
import os

from . import _c, records
from ._c import LayerSpec, lib
from .errors import Handle, check


def _path(path):
    """As C takes it: None is no folder called "None", and no NUL ends it early."""
    text = os.fsencode(path)
    if b"\0" in text:
        raise ValueError(f"{path!r}: a path with a NUL")
    return text


class Source(Handle):
    """A checkpoint, an expert pack, or weights of the host's own. Engines keep their own
    reference."""
    _destroy = lib.moert_source_destroy

    @classmethod
    def open(cls, model_dir, cache_dir=None, progress=None, mode="pack_if_there"):
        """A checkpoint directory as published on Hugging Face. mode: "pack_if_there" takes a pack of
        the cache folder if there is one, else reads the checkpoint in place; "in_place" always does;
        "pack" writes that pack the first time, as large as the experts: progress(done_bytes,
        total_bytes) hears of it."""
        options = _c.init(_c.OpenOptions)
        if mode not in _c.OPEN_MODES:
            raise ValueError(f"mode is {mode!r}; legal are {', '.join(_c.OPEN_MODES)}")
        options.mode = _c.OPEN_MODES[mode]
        if cache_dir is not None:
            options.cache_dir = _path(cache_dir)
        if progress is not None:
            callback = _c.Progress(lambda _, done, total: progress(done, total))
            options.progress = c.cast(callback, c.c_void_p)
        handle = c.c_void_p()
        check(lib.moert_source_open, _path(model_dir), c.byref(options), c.byref(handle))
        return cls(handle)

    @classmethod
    def open_pack(cls, pack_dir):
        """An expert pack, as moert-pack writes them."""
        handle = c.c_void_p()
        check(lib.moert_source_open_pack, _path(pack_dir), c.byref(handle))
        return cls(handle)

    @classmethod
    def from_weights(cls, name, layers, read, dtype="float32", schemes=None):
        """Weights of the host's own. layers: a list of Source.layer(...). read(layer, expert, part,
        first_row, rows, cols) returns rows * cols values: a CPU tensor or contiguous buffer of
        `dtype` ("float32", "bfloat16" or "float16"; parts of a layer always float32, "hash_experts"
        int32), their bytes, or an iterable of numbers. part is one of _c.PARTS; expert -1 the shared
        one. schemes: experts are packed records ("bf16,w4a16_g128"); read is then asked for part
        "record", whose first_row is the version's number, and returns bytes.
        Called from threads of the library."""
        def callback(_, what, failure):
            r = what.contents
            try:
                part = _c.PARTS[r.part]
                _fill(r.dst, read(r.layer, r.expert, part,
                                  r.version if part == "record" else r.first_row, r.dst.rows,
                                  r.dst.cols))
                return 0
            except BaseException as e:  # must not pass through C
                text = f"{type(e).__name__}: {e}".replace("\0", " ")
                lib.moert_failure_set(failure, text.encode())
                return _c.DATA_LOSS

        callbacks = _c.init(_c.SourceCallbacks)
        callbacks.read = _c.ReadCallback(callback)
        callbacks.weights_dtype = _c.DTYPES[dtype]
        if schemes is not None:
            callbacks.schemes = schemes.encode()
        handle = c.c_void_p()
        check(lib.moert_source_create, name.encode(), (LayerSpec * len(layers))(*layers),
              len(layers), c.byref(callbacks), c.byref(handle))
        source = cls(handle)
        source._callbacks = callbacks  # the engine keeps the source object, that this
        return source

    @classmethod
    def from_records(cls, name, layers, parts, files=(), read=None):
        """Records in the host's own format; the products over them are the host's (Step.fetch).
        layers: a list of Source.layer(..., routing="external"). parts: a list of Source.part(...).
        files: paths. read(layer, expert, part) returns the bytes of a part that is neither in memory
        nor in a file; called from threads of the library."""
        options, names = records.options(read, files)
        for p, memory in parts:
            records.check_memory(layers, p, memory)
        structs = (_c.OpaquePart * len(parts))(*(p for p, _ in parts))
        handle = c.c_void_p()
        check(lib.moert_source_create_opaque, name.encode(), (LayerSpec * len(layers))(*layers),
              len(layers), structs, len(parts), c.byref(options), c.byref(handle))
        source = cls(handle)
        source._callbacks = (options, names, [memory for _, memory in parts])
        return source

    part = staticmethod(records.part)

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
    def name(self):
        """The directory, or the host's name."""
        return lib.moert_source_name(self._handle).decode()

    @property
    def layers(self):
        """MoE layers."""
        return lib.moert_source_layer_count(self._handle)

    def spec(self, index):
        """The LayerSpec of a layer."""
        spec = _c.init(LayerSpec)
        check(lib.moert_source_layer, self._handle, index, c.byref(spec))
        return spec

    def check_shards(self, shards):
        """Raises what is missing or twice, unless the shards (as Engine takes them) own everything
        exactly once."""
        structs = [records.shard(**s) for s in shards]
        check(lib.moert_shards_check, self._handle, (_c.Shard * len(structs))(*structs),
              len(structs))

    def schemes(self):
        """The names of the schemes that matrices of experts are in, in any version."""
        found, info = set(), _c.init(_c.RecordInfo)
        for layer in range(self.layers):
            for expert in range(self.spec(layer).num_experts):
                for version in range(lib.moert_source_version_count(self._handle)):
                    check(lib.moert_source_record, self._handle, layer, expert, version,
                          c.byref(info))
                    found |= {m.scheme.decode() for m in (info.gate, info.up, info.down)
                              if m.scheme}
        return sorted(found)

    def versions(self):
        """[(name, bytes of one expert of the first layer)], most bits first."""
        found = []
        for version in range(lib.moert_source_version_count(self._handle)):
            info = _c.init(_c.RecordInfo)
            check(lib.moert_source_record, self._handle, 0, 0, version, c.byref(info))
            found.append((info.version.decode(), info.bytes))
        return found


_ITEM_BYTES = {_c.F32: 4, _c.BF16: 2, _c.F16: 2, _c.I32: 4, _c.U8: 1}
_FORMATS = {_c.I32: ("i", "<i"), _c.F32: ("f", "<f"), _c.F16: ("e", "<e"), _c.BF16: ("H", "<H"),
            _c.U8: ("B", "B")}  # of a buffer


def _fill(dst, weights):
    """Copies what a host's read returned to where the library wants it."""
    count = dst.rows * dst.cols
    size = count * _ITEM_BYTES[dst.dtype]
    if hasattr(weights, "data_ptr"):  # torch
        if str(weights.dtype) != _c.TORCH_DTYPES[dst.dtype] or weights.numel() != count:
            raise ValueError(f"{count} values of {_c.TORCH_DTYPES[dst.dtype]} are wanted, not "
                             f"{weights.numel()} of {weights.dtype}")
        weights = weights.contiguous()
        if weights.device.type != "cpu":
            raise ValueError(f"a CPU tensor is wanted, not one of {weights.device}")
        c.memmove(dst.data, weights.data_ptr(), size)
        return
    if not hasattr(weights, "__getitem__") or isinstance(weights, (list, tuple)):
        weights = array.array("i" if dst.dtype == _c.I32 else "f", weights)
    view = memoryview(weights)
    if view.format not in ("B", *_FORMATS[dst.dtype]) or view.nbytes != size:
        raise ValueError(f"{size} bytes of '{_FORMATS[dst.dtype][0]}' are wanted, not "
                         f"{view.nbytes} bytes of '{view.format}'")
    c.memmove(dst.data, weights if isinstance(weights, bytes) else view.tobytes(), size)
