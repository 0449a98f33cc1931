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


def _of_torch(tensor, rows, dtypes, device):
    dtype = _TORCH.get(str(tensor.dtype))
    if dtype not in dtypes:
        raise TypeError(f"{tensor.dtype}: {_wanted(dtypes)} is wanted")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"a CPU or CUDA tensor is wanted, not one of {tensor.device}")
    place = _c.HOST if tensor.device.type == "cpu" else _c.DEVICE
    if place == _c.DEVICE and tensor.device.index != device:
        raise TypeError(f"a tensor of {tensor.device}; the engine is on "
                        f"{'the CPU' if device is None else f'cuda:{device}'}")
    if tensor.dim() == 2 and tensor.shape[0] == rows and (tensor.stride(1) == 1 or
                                                          tensor.shape[1] == 1):
        stride = max(tensor.stride(0), tensor.shape[1])  # of one row torch may say anything
        return _c.Tensor(tensor.data_ptr(), rows, tensor.shape[1], stride, dtype, place)
    if not tensor.is_contiguous() or tensor.numel() % rows != 0:
        raise TypeError(f"a contiguous tensor of {rows} rows is wanted, not {tuple(tensor.shape)} "
                        f"with strides {tensor.stride()}")
    cols = tensor.numel() // rows
    return _c.Tensor(tensor.data_ptr(), rows, cols, cols, dtype, place)


def _of_buffer(array, rows, dtypes, writable):
    view = memoryview(array)
    dtype = _BUFFER.get(view.format.lstrip("<="))
    if not view.c_contiguous or dtype not in dtypes:
        raise TypeError(f"a contiguous array of {_wanted(dtypes)} is wanted, not '{view.format}'")
    if writable and view.readonly:
        raise TypeError("the output array is read-only")
    count = view.nbytes // view.itemsize
    if count % rows != 0:
        raise ValueError(f"{count} elements for {rows} rows")
    if view.readonly:  # ctypes wants a writable buffer to name its address
        import numpy
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
