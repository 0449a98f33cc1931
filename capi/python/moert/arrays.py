"""Matrices where they lie: torch tensors (host or CUDA), numpy arrays, anything with a buffer.
Nothing is copied."""
import ctypes as c

from . import _c

_TORCH = {"torch.float32": _c.F32, "torch.bfloat16": _c.BF16, "torch.float16": _c.F16,
          "torch.int32": _c.I32}
_BUFFER = {"f": _c.F32, "e": _c.F16, "i": _c.I32}
_NAMES = {_c.F32: "float32", _c.BF16: "bfloat16", _c.F16: "float16", _c.I32: "int32"}
FLOATS = (_c.F32, _c.BF16, _c.F16)


def _wanted(dtypes):
    return " or ".join(_NAMES[d] for d in dtypes)


_seen = {}  # torch's dtype objects: their names take as long as all the rest


def _dtype_of_torch(tensor):
    kind = tensor.dtype
    if kind not in _seen:
        _seen[kind] = _TORCH.get(str(kind))
    return _seen[kind]


def _of_torch(tensor, rows, dtypes, device):
    dtype = _dtype_of_torch(tensor)
    if dtype not in dtypes:
        raise TypeError(f"{tensor.dtype}: {_wanted(dtypes)} is wanted")
    if not tensor.is_cuda and not tensor.is_cpu:
        raise TypeError(f"a CPU or CUDA tensor is wanted, not one of {tensor.device}")
    place = _c.DEVICE if tensor.is_cuda else _c.HOST
    if place == _c.DEVICE and tensor.get_device() != device:
        raise TypeError(f"a tensor of {tensor.device}; the engine is on "
                        f"{'the CPU' if device is None else f'cuda:{device}'}")
    shape, contiguous = tensor.shape, tensor.is_contiguous()
    if len(shape) == 2 and shape[0] == rows and (contiguous or tensor.stride(1) == 1 or
                                                 shape[1] == 1):
        # Torch may say anything of one row.
        stride = shape[1] if contiguous else max(tensor.stride(0), shape[1])
        return _c.Tensor(tensor.data_ptr(), rows, shape[1], stride, dtype, place)
    if not contiguous or tensor.numel() % rows != 0:
        raise TypeError(f"a contiguous tensor of {rows} rows is wanted, not {tuple(shape)} "
                        f"with strides {tensor.stride()}")
    cols = tensor.numel() // rows
    return _c.Tensor(tensor.data_ptr(), rows, cols, cols, dtype, place)


def _of_buffer(array, rows, dtypes, writable):
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError("a torch tensor, a numpy array or another buffer is wanted, not "
                        f"{type(array).__name__}") from None
    dtype = _BUFFER.get(view.format.lstrip("<="))
    if dtype not in dtypes:
        raise TypeError(f"an array of {_wanted(dtypes)} is wanted, not '{view.format}'")
    if not view.c_contiguous:
        raise TypeError(f"a contiguous array is wanted, not {view.shape} with strides "
                        f"{view.strides}")
    if writable and view.readonly:
        raise TypeError("the output array is read-only")
    count = view.nbytes // view.itemsize
    if count % rows != 0:
        raise ValueError(f"{count} elements for {rows} rows")
    if view.readonly:  # ctypes wants a writable buffer to name its address
        try:
            import numpy
        except ImportError:
            raise TypeError("the address of a read-only array takes numpy; a writable one does "
                            "without") from None
        address = numpy.frombuffer(view, numpy.uint8).ctypes.data
    else:
        address = c.addressof((c.c_char * view.nbytes).from_buffer(view))
    return _c.Tensor(address, rows, count // rows, count // rows, dtype, _c.HOST)


def matrix(array, rows, dtypes=FLOATS, writable=False, device=None):
    """An array as [rows, *]. `array` has to stay alive while the result is used. device: the CUDA
    ordinal of the engine it is for, or None."""
    if hasattr(array, "data_ptr"):
        return _of_torch(array, rows, dtypes, device)
    return _of_buffer(array, rows, dtypes, writable)
