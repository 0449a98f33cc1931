"""Linear layers that publishers have quantized, as the plain weights that they stand for. For the
dense part of a checkpoint, where transformers' own quantizer or its package is not there."""
import re

import torch
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.quantizers_utils import get_module_from_name

# Last names of the tensors that one weight is made of, by quant_method.
NAMES = {
    "gptq": ("weight", "qweight", "qzeros", "scales", "g_idx"),
    "awq": ("weight", "qweight", "qzeros", "scales"),
    "compressed-tensors": ("weight", "weight_packed", "weight_scale", "weight_zero_point",
                           "weight_global_scale", "weight_shape", "weight_g_idx",
                           "input_global_scale", "input_scale", "input_zero_point"),
    "modelopt": ("weight", "weight_scale", "weight_scale_2", "input_scale"),
    "fp8": ("weight", "weight_scale_inv", "activation_scale", "weight_scale", "input_scale"),
}
NAMES["auto-round"] = NAMES["gptq"]  # GPTQ's or AWQ's packing
_E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a column lies in its word


def _unpacked(words, bits, dim):
    """Codes of `bits` bits, the first in the low ones, along a dimension of int32 words."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    codes = (words.movedim(dim, -1)[..., None] >> shifts) & (2**bits - 1)
    return codes.flatten(-2).movedim(-1, dim)


def _bits(words, values):
    """Of codes: `values` of them lie in `words` int32."""
    for bits in (2, 4, 8):
        if words * (32 // bits) == values:
            return bits
    raise ValueError(f"{values} codes in {words} words of 32 bits; legal are codes of 2, 4 and 8 "
                     "bits")


def _gptq_zeros(words, bits, config):
    """Version 1 of the form, auto-round's default, has zeros that are one less."""
    one = sum(1 << shift for shift in range(0, 32, bits))
    more = (words.long() + one).remainder(1 << 32)
    more = _unpacked(torch.where(more >= 1 << 31, more - (1 << 32), more).int(), bits, 1)
    plain = _unpacked(words, bits, 1)
    if not config.get("sym"):
        as_they_are = (config.get("checkpoint_format") == "gptq_v2" or
                       config.get("packing_format") in ("auto_round", "auto_round:gptqmodel"))
        return plain if as_they_are else more
    middle = 2 ** (bits - 1)  # under either label
    if not ((plain == middle).all() or (more == middle).all()):
        raise ValueError(f"it is symmetric, but has zeros other than {middle}")
    return torch.full_like(plain, middle)


def _gptq(t, shape, config):
    _, k = shape
    bits = _bits(t["qweight"].shape[0], k)
    codes, zeros = _unpacked(t["qweight"], bits, 0), _gptq_zeros(t["qzeros"], bits, config)
    group = _groups(t.get("g_idx"), k, len(t["scales"]), codes.device)
    return (t["scales"].float()[group] * (codes - zeros[group])).t()


def _groups(stored, k, count, device):
    """To which of `count` groups each of k channels belongs."""
    if stored is not None:
        return stored.long()
    return torch.arange(k, device=device) // -(-k // count)


def _awq(t, shape, config):
    if config.get("version", "gemm") != "gemm":
        raise ValueError(f"AWQ's version is {config['version']}, legal is gemm")

    def codes(words):
        return _unpacked(words, 4, 1).view(len(words), -1, 8)[..., _AWQ_ORDER].flatten(1)
    group = _groups(None, shape[1], len(t["scales"]), t["scales"].device)
    return (t["scales"].float()[group] * (codes(t["qweight"]) - codes(t["qzeros"])[group])).t()


def _packed(t, shape, _):
    """compressed-tensors' signed integers."""
    rows, k = shape
    bits = _bits(t["weight_packed"].shape[1], k)
    codes = _unpacked(t["weight_packed"], bits, 1) - 2 ** (bits - 1)
    group = _groups(t.get("weight_g_idx"), k, t["weight_scale"].shape[1], codes.device)
    if "weight_zero_point" in t:
        codes = codes - (_unpacked(t["weight_zero_point"], bits, 0)[:rows] -
                         2 ** (bits - 1))[:, group]
    return codes * t["weight_scale"].float()[:, group]


def _nvfp4(t, _, config):
    bytes_ = (t["weight_packed"] if "weight_packed" in t else t["weight"]).view(torch.uint8)
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten(1).int()
    values = _E2M1.to(bytes_.device)[codes] * t["weight_scale"].float().repeat_interleave(16, 1)
    if "weight_global_scale" in t:
        return values / t["weight_global_scale"].float()
    return values * t["weight_scale_2"].float()


def _scaled(t, shape, config):
    """Integers or floats of 8 bits: a scale of all, of each row, of groups in a row, or of blocks."""
    name = "weight_scale_inv" if "weight_scale_inv" in t else "weight_scale"
    values, scale = t["weight"].float(), t[name]
    # Exponents alone, of two.
    scale = (scale.float() - 127).exp2() if scale.dtype == torch.uint8 else scale.float()
    if "weight_zero_point" in t:
        values = values - t["weight_zero_point"].float().repeat_interleave(
            shape[1] // t["weight_zero_point"].shape[-1], -1)
    if scale.numel() == 1:
        return values * scale.flatten()
    scale = scale.reshape(len(scale), -1)
    blocks = config.get("weight_block_size") or _block_structure(config)
    for dim, size in enumerate(shape):
        count = scale.shape[dim]
        step = blocks[dim] if blocks and count == -(-size // blocks[dim]) else -(-size // count)
        scale = scale.repeat_interleave(step, dim).narrow(dim, 0, size)
    return values * scale


def _block_structure(config):
    groups = config.get("config_groups") or {}
    return next((g["weights"]["block_structure"] for g in groups.values()
                 if (g.get("weights") or {}).get("block_structure")), None)


def weight(tensors, shape, config):
    """fp32 [rows, k] from tensors by their last names. ValueError for a form that is not known."""
    if "qweight" in tensors:
        packing = config.get("packing_format") or config.get("backend") or config["quant_method"]
        form = _awq if "awq" in packing else _gptq
    elif "weight_global_scale" in tensors or "weight_scale_2" in tensors:
        form = _nvfp4
    elif "weight_packed" in tensors:
        form = _packed
    elif {"weight_scale_inv", "weight_scale"} & set(tensors):
        form = _scaled
    else:
        raise ValueError(f"it is stored as {', '.join(sorted(tensors))}")
    made = form(tensors, shape, config)
    if tuple(made.shape) != tuple(shape):
        raise ValueError(f"it is {list(made.shape)} in the file, the model wants {list(shape)}")
    return made


class Dequantize(ConversionOps):
    """First of the operations by which transformers makes a parameter. What is not quantized takes
    the model's type alone."""

    def __init__(self, hf_quantizer):
        self.hf_quantizer = hf_quantizer  # tells transformers to leave the types of tensors alone
        self._config = hf_quantizer.quantization_config.dense

    def __deepcopy__(self, memo):  # transformers copies a converter for every parameter
        return self

    def convert(self, input_dict, full_layer_name=None, model=None, **_):
        module, name = get_module_from_name(model, full_layer_name)
        parameter = getattr(module, name)
        bases = {}  # of every weight: {last name: its tensors}
        for pattern, tensors in input_dict.items():
            base, last = re.fullmatch(r"(.*?)([^.]*)", pattern).groups()
            bases.setdefault(base, {})[last] = tensors
        whole = set(bases) == {""}  # no operation follows
        return {full_layer_name if whole else base + "weight":
                self._weights(full_layer_name, stored, parameter, whole)
                for base, stored in bases.items()}

    def _weights(self, name, stored, parameter, whole):
        if set(stored) == {"weight"}:
            return [t.to(parameter.dtype) for t in stored["weight"]]
        made = []
        for number in range(max(len(tensors) for tensors in stored.values())):
            one = {last: tensors[number] for last, tensors in stored.items()}
            shape = tuple(parameter.shape) if whole else shape_of(one)
            try:
                made.append(weight(one, shape, self._config).to(parameter.dtype))
            except (KeyError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from error
        return made


def shape_of(tensors):
    """Of the weight that tensors stand for; of tensors in a file as well."""
    sizes = {last: tuple(t.shape) for last, t in tensors.items()}
    if "weight_shape" in tensors:
        stored = tensors["weight_shape"]
        return tuple(int(n) for n in (stored.values() if hasattr(stored, "read") else stored))
    if "qweight" in sizes:
        rows, (k, columns) = sizes["scales"][1], sizes["qweight"]
        if "g_idx" in sizes:
            k = sizes["g_idx"][0]
        elif columns == rows:  # GPTQ's packing: words lie along k
            k *= rows // sizes["qzeros"][1]
        return rows, k
    if "weight_packed" in sizes:
        *rows, words = sizes["weight_packed"]
        return *rows, words * (2 if "weight_global_scale" in sizes else 8)
    *rows, k = sizes["weight"]
    return *rows, k * (2 if "weight_scale_2" in sizes else 1)
