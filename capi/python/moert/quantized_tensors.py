"""Quantized matrices of a checkpoint as tensors of plain numbers, made as they are read."""
import collections
import threading

from . import dense_forms, tensor_files

_KEPT = 8  # matrices: rows of one are asked for one after another


class _Matrix:
    """A tensor_files.Tensor of fp32 over those that hold the codes."""
    dtype, item_bytes = "F32", 4

    def __init__(self, name, tensors, config, cache):
        self._name, self._tensors, self._config, self._cache = name, tensors, config, cache
        self.shape = list(dense_forms.shape_of(tensors))

    def read(self, first, count):
        flat = self._cache.get(self._name, self.values).flatten()
        return flat[first:first + count].numpy().tobytes()

    def values(self):
        try:
            stored = {last: tensor.values() for last, tensor in self._tensors.items()}
            return dense_forms.weight(stored, tuple(self.shape), self._config)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{self._name}: {error}") from error


class _Cache:
    """The matrices made last. Thread-safe."""

    def __init__(self):
        self._lock, self._made = threading.Lock(), collections.OrderedDict()

    def get(self, name, make):
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            return self._made[name]


def open_files(paths, config):
    """tensor_files.open_files with a plain tensor in place of those of every quantized matrix."""
    names = dense_forms.NAMES.get(config.get("quant_method"))
    if names is None:
        return tensor_files.open_files(paths)
    tensors = tensor_files.open_files(paths, codes=True)
    bases, cache = {}, _Cache()
    for name in tensors:
        base, _, last = name.rpartition(".")
        if last in names:
            bases.setdefault(base, {})[last] = tensors[name]
    for base, parts in bases.items():
        if set(parts) == {"weight"} or any(isinstance(t, str) for t in parts.values()):
            continue  # not quantized, or by types that are not known
        if len(dense_forms.shape_of(parts)) != 2:
            continue
        for last in parts:
            del tensors[f"{base}.{last}"]
        tensors[base + ".weight"] = _Matrix(base + ".weight", parts, config, cache)
    # Codes that are no matrix's are not read.
    return {name: t if isinstance(t, str) or t.dtype in tensor_files.PLAIN else t.dtype
            for name, t in tensors.items()}
