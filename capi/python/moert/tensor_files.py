"""Rows of tensors in a checkpoint's safetensors files, read and never mapped: what is read is all
that takes memory."""
import json
import math
import os
import pathlib
import struct

PLAIN = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
CODES = {"I32": "int32", "I64": "int64", "I8": "int8", "U8": "uint8", "BOOL": "bool",
         "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu"}
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "BOOL": 1,
          "F8_E4M3": 1, "F8_E8M0": 1}
_HEADER_LIMIT = 100 << 20


class Tensor:
    """One tensor of a file: dtype ("BF16"), shape, and reads of what lies together."""

    def __init__(self, file, start, dtype, shape):
        self._file, self._start, self.dtype, self.shape = file, start, dtype, shape
        self.item_bytes = _BYTES[dtype]

    def read(self, first, count):
        """Bytes of `count` elements from element `first` on."""
        size, at = count * self.item_bytes, self._start + first * self.item_bytes
        parts = []
        while size > 0:
            part = os.pread(self._file.fd, size, at)
            if not part:
                raise OSError(f"{self._file.path} ends at {at}, {size} bytes are missing")
            parts.append(part)
            size, at = size - len(part), at + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def values(self):
        """All of it, as a torch tensor."""
        import torch
        kind = getattr(torch, {**PLAIN, **CODES}[self.dtype])
        data = bytearray(self.read(0, math.prod(self.shape)))
        return torch.frombuffer(data, dtype=kind).view(self.shape)


class _File:
    def __init__(self, path):
        self.path, self.fd = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self):
        if os is not None:  # at exit modules go first
            os.close(self.fd)

    def header(self):
        size = os.fstat(self.fd).st_size
        (length,) = struct.unpack("<Q", os.pread(self.fd, 8, 0).ljust(8, b"\0"))
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise ValueError(f"{self.path}: its header says {length} bytes, legal is 2 to "
                             f"{min(_HEADER_LIMIT, max(size - 8, 2))}: no safetensors file")
        return 8 + length, size, json.loads(os.pread(self.fd, length, 8))


def _tensors(path, types):
    file = _File(path)
    base, size, header = file.header()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype, shape = entry["dtype"], entry["shape"]
        if not 0 <= begin <= end <= size - base:
            raise ValueError(f"{path}: {name} lies at {begin} to {end} of {size - base} bytes")
        if dtype not in types:
            yield name, dtype
            continue
        if math.prod(shape) * _BYTES[dtype] != end - begin:
            raise ValueError(f"{path}: {name} is {shape} of {dtype}, but has {end - begin} bytes")
        yield name, Tensor(file, base + begin, dtype, shape)


def of_folder(folder):
    """The files that a checkpoint's tensors are in."""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in names:
        if pathlib.PurePath(name).name != name:
            raise ValueError(f"{index}: '{name}' is not a file of this folder")
    return [folder / name for name in names]


def open_files(paths, codes=False):
    """{name: Tensor} of every tensor of these files; the value is the type's name where it is none
    of BF16, F16 and F32, nor with `codes` one of theirs."""
    found, files = {}, {}
    for path in paths:
        for name, tensor in _tensors(path, {**PLAIN, **(CODES if codes else {})}):
            if name in found:
                raise ValueError(f"{name} is in {files[name]} and in {path}")
            found[name], files[name] = tensor, path
    return found


def quantized_beside_experts(paths):
    """{name: shape} of other tensors than those of experts whose types are those of codes."""
    found = {}
    for path in paths:
        _, _, header = _File(path).header()
        found |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"
                  and entry["dtype"] not in (*PLAIN, "I64", "BOOL") and ".experts." not in name}
    return found
