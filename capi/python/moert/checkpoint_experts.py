"""Experts of a checkpoint that the library does not read itself, by the names of their tensors:
rows as they are asked for, in the checkpoint's own type. For blocks whose router stays the
host's."""
import re
import typing

from .source import Source
from .tensor_files import open_folder

_OF_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:.*\.)?(?:experts|block_sparse_moe)\.(.+)")
_OF_EXPERT = re.compile(r"(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_FUSED = re.compile(r"(gate_up_proj|gate_proj|up_proj|down_proj|input_linear|output_linear)"
                    r"(?:\.weight)?")
_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj", "input_linear": "gate_up_proj",
          "output_linear": "down_proj"}
_OF_ROUTER = re.compile(r"(gate|router)\..*|.*e_score_correction_bias")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class _Layer:
    """Where the matrices of a layer's experts lie: {(expert or None, part): tensor}."""

    def __init__(self, number):
        self.number, self.tensors = number, {}

    def add(self, name, rest, tensor):
        if match := _OF_EXPERT.fullmatch(rest):
            key = int(match[1]), _PARTS.get(match[2], match[2])
        elif match := _FUSED.fullmatch(rest):
            key = None, _PARTS.get(match[1], match[1])
        elif _OF_ROUTER.fullmatch(rest):
            return
        else:
            raise ValueError(f"{name} is no matrix of a gated expert; experts with biases or "
                             "scales of their own are not supported")
        if isinstance(tensor, str):
            raise ValueError(f"{name} is of type {tensor}; experts may be BF16, F16 or F32")
        self.tensors[key] = tensor

    def find(self, expert, part):
        """The tensor that holds a matrix, and whether it is all experts' and gate and up in one."""
        for key in ((expert, part), (None, part), (None, "gate_up_proj")):
            if key in self.tensors and not (part == "down_proj" and key[1] != part):
                return self.tensors[key], key[0] is None, key[1] != part
        raise ValueError(f"layer {self.number} has no {part} of expert {expert}")


class Shape(typing.NamedTuple):
    """Of a layer's experts as the model has them; transposed: fused tensors are [in, out]."""
    experts: int
    width: int
    hidden: int
    transposed: bool = False


class CheckpointExperts:
    """shapes: {layer number in the model: Shape} of every MoE layer; the files have to agree."""

    def __init__(self, folder, shapes):
        layers = {number: _Layer(number) for number in shapes}
        for name, tensor in open_folder(folder).items():
            match = _OF_LAYER.fullmatch(name)
            if match and int(match[1]) in layers:
                layers[int(match[1])].add(name, match[2], tensor)
        numbers = sorted(shapes)
        self._layers = [(layers[number], shapes[number]) for number in numbers]
        types = {self._check(layer, shape) for layer, shape in self._layers}
        if len(types) != 1:
            raise ValueError(f"experts are stored in several types: {', '.join(sorted(types))}")
        self.dtype = _DTYPES[types.pop()]

    @staticmethod
    def _check(layer, shape):
        """The type of the first and last expert, whose sizes are the model's."""
        types = set()
        for expert in (0, shape.experts - 1):
            for part in ("gate_proj", "up_proj", "down_proj"):
                tensor, fused, halves = layer.find(expert, part)
                wanted = [shape.width * (1 + halves), shape.hidden]
                if (part == "down_proj") != (fused and shape.transposed):
                    wanted.reverse()
                if fused:
                    wanted.insert(0, shape.experts)
                if list(tensor.shape) != wanted:
                    raise ValueError(f"layer {layer.number}: {part} of the experts is "
                                     f"{list(tensor.shape)}, the model wants {wanted}")
                types.add(tensor.dtype)
        return types.pop() if len(types) == 1 else "/".join(sorted(types))

    def read(self, layer, expert, part, first_row, rows, cols):
        """As Source.from_weights wants it."""
        found, shape = self._layers[layer]
        tensor, fused, halves = found.find(expert, part)
        size = (1 + halves) * shape.width * shape.hidden  # elements an expert
        base = expert * size if fused else 0
        if halves and part == "up_proj":
            first_row += shape.width
        if not (fused and shape.transposed):
            return tensor.read(base + first_row * cols, rows * cols)
        stored = size // cols  # elements of a row as stored: our rows, of both halves
        return _transpose([tensor.read(base + i * stored + first_row, rows) for i in range(cols)],
                          rows, tensor.item_bytes)

    def source(self, name, top_k, activations):
        """A source without routers: the host brings every layer's routing. top_k, activations: of
        each layer."""
        specs = [Source.layer(model_layer=layer.number, routing="external", top_k=k,
                              activation=activation, num_experts=shape.experts, hidden=shape.hidden,
                              intermediate=shape.width)
                 for (layer, shape), k, activation in zip(self._layers, top_k, activations)]
        return Source.from_weights(name, specs, self.read, self.dtype)


def _transpose(columns, rows, item_bytes):
    """Columns of `rows` elements each, as rows."""
    import torch
    kind = {2: torch.int16, 4: torch.int32}[item_bytes]
    flat = torch.frombuffer(bytearray(b"".join(columns)), dtype=kind)
    turned = flat.view(len(columns), rows).t().contiguous()
    return turned.view(torch.uint8).numpy().tobytes()
