"""Records in a host's own format, where they lie, and which of them an engine has."""
import ctypes as c

from . import _c
from ._c import lib
from .errors import check


def options(read, files):
    """moert_opaque_options, and what has to live as long."""
    o = _c.init(_c.OpaqueOptions)
    names = (c.c_char_p * max(1, len(files)))(*(str(f).encode() for f in files))
    o.files, o.num_files = c.cast(names, c.c_void_p), len(files)
    if read is not None:
        o.read = _c.ReadPart(_reader(read))
    return o, names


def _reader(read):
    def callback(_, layer, expert, part, dst, size, failure):
        try:
            view = memoryview(read(layer, expert, part)).cast("B")
            if view.nbytes != size:
                raise ValueError(f"{size} bytes are wanted, not {view.nbytes}")
            c.memmove(dst, view.tobytes(), size)
            return 0
        except BaseException as e:  # must not pass through C
            text = f"{type(e).__name__}: {e}".replace("\0", " ")
            lib.moert_failure_set(failure, text.encode())
            return _c.DATA_LOSS
    return callback


def part(layer, size, *, memory=None, file=None, offset=0, stride=0, alignment=1,
         stride_multiple=1, zeros=0):
    """One part of every expert of a layer: moert_opaque_part, and what has to live as long."""
    p = _c.init(_c.OpaquePart)
    p.layer, p.bytes, p.offset, p.stride = layer, size, offset, stride
    p.alignment, p.stride_multiple, p.zeros = alignment, stride_multiple, zeros
    if file is not None:
        p.file = file
    if memory is None:
        return p, None
    view = memoryview(memory).cast("B")
    if view.readonly:
        raise TypeError(f"part of layer {layer}: memory is read-only; a writable buffer is wanted, "
                        "whose address can be had")
    buffer = (c.c_char * view.nbytes).from_buffer(view)
    p.memory = c.addressof(buffer)
    return p, buffer


def check_memory(layers, p, memory):
    """C has no size of a part's memory: experts beyond it would be read all the same."""
    if memory is None or not 0 <= p.layer < len(layers):
        return
    experts, stride = layers[p.layer].num_experts, p.stride or p.bytes
    end = p.offset + (experts - 1) * stride + p.bytes
    if end > len(memory):
        raise ValueError(f"part of layer {p.layer}: {experts} experts of {p.bytes} bytes, {stride} "
                         f"apart from offset {p.offset} on, end at {end}; the memory has "
                         f"{len(memory)} bytes")


def shard(first_expert=0, num_experts=0, first_channel=0, num_channels=0, shared_experts=True,
          experts=None):
    """moert_shard; experts: of each layer a list of those it has, in place of the range."""
    s = _c.init(_c.Shard)
    s.first_expert, s.num_experts = first_expert, num_experts
    s.first_channel, s.num_channels = first_channel, num_channels
    s.shared_experts = bool(shared_experts)
    if experts is not None:
        flat = [number for layer in experts for number in (len(layer), *layer)]
        s._list = (c.c_int32 * len(flat))(*flat)
        s.expert_list, s.expert_list_size = c.addressof(s._list), len(flat)
    return s


class Slots:
    """Experts of one layer, pinned where they lie until release(), or the end of the step. What
    part() returned must not be read after that."""

    def __init__(self, step, layer, experts, slots):
        self._step, self._layer, self._experts, self._c = step, layer, experts, slots

    def slot(self, expert):
        """-1: it was not asked for."""
        if self._step is None or not self._step._handle:
            raise ValueError(f"slots of layer {self._layer}: released")
        if not 0 <= expert < self._experts:
            raise KeyError(f"expert {expert} does not exist")
        return self._c.slot_of_expert[expert]

    def region(self, part=0):
        """(base, stride, bytes): the part of the expert in slot s lies at base + s * stride, in
        device memory where the engine is on CUDA."""
        if not 0 <= part < self._c.parts:
            raise KeyError(f"part {part} does not exist")
        return self._c.base[part], self._c.stride[part], self._c.bytes[part]

    @property
    def device_table(self):
        """CUDA: the address of the layer's slots in device memory, int32 [experts], -1: not there;
        else None."""
        return self._c.device_slot_of_expert

    def part(self, expert, part=0):
        """The bytes of one part of an expert, in place and read-only. Of an engine on the CPU."""
        slot = self.slot(expert)
        if slot < 0 or not 0 <= part < self._c.parts:
            raise KeyError(f"expert {expert} part {part}: not fetched")
        if self.device_table:
            raise TypeError("the slots are in device memory: take their addresses from region()")
        base, stride, size = self.region(part)
        return memoryview((c.c_char * size).from_address(base + slot * stride)).toreadonly()

    def release(self):
        step, self._step = self._step, None
        if step is not None and step._handle:
            step._call(lib.moert_slots_release, self._layer)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.release()
