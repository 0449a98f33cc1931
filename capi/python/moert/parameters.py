"""Which tensors of a checkpoint become which parameter of a transformers model: by the rules that
transformers loads it with, so that a tensor is used exactly where transformers would."""
import re

from transformers import conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from . import stacks


class Parameters:
    """tensors: {name: Tensor} of tensor_files. left_out: modules of experts in the files that the
    model does not have."""

    def __init__(self, model, tensors):
        self._tensors = tensors
        mapping = conversion_mapping.get_model_conversion_mapping(model)
        renamings = [t for t in mapping if isinstance(t, WeightRenaming)]
        converters = [t for t in mapping if isinstance(t, WeightConverter)]
        self._converters = {p: c for c in converters for p in c.source_patterns}
        state = model.state_dict(keep_vars=True)
        self._sources, left_out = {}, set()  # {parameter: {pattern or None: [names]}}
        self._shares = {}  # {parameter: (which, of how many) of what one conversion makes}
        for name in tensors:
            target, pattern = rename_source_key(name, renamings, converters,
                                                model.base_model_prefix, state)
            if target not in state and name in state:
                target, pattern = name, None
            if target in state:
                for parameter in self._targets(target, pattern):
                    self._sources.setdefault(parameter, {}).setdefault(pattern, []).append(name)
            elif match := re.match(r"(.*\bexperts)\b", name):
                left_out.add(match[1])
        self.left_out = sorted(left_out)

    def _targets(self, target, pattern):
        """The parameters that a tensor becomes a part of: several where its conversion splits."""
        if pattern is None:
            return [target]
        endings = self._converters[pattern].target_patterns
        targets = [target.replace(endings[0], ending) for ending in endings]
        self._shares |= {t: (which, len(targets)) for which, t in enumerate(targets)}
        return targets

    def names(self, parameter):
        """The tensors that it is made of."""
        return [name for some in self._sources.get(parameter, {}).values() for name in some]

    def one(self, parameter):
        """The tensor that is this parameter as it is, or None."""
        names = self._sources.get(parameter, {})
        if set(names) != {None}:
            return None
        return self._tensors[self._single(parameter, names[None])]

    def stack(self, parameter, shape):
        """A Stack of this shape (experts, rows, cols)."""
        sources = self._sources.get(parameter)
        if not sources:
            raise ValueError(f"the checkpoint has no tensor for {parameter}")
        if None in sources:
            if len(sources) > 1:
                self._single(parameter, self.names(parameter))
            name = self._single(parameter, sources[None])
            return self._checked(parameter, self._stored([name], shape), shape)
        converter = self._converters[next(iter(sources))]
        operations = [type(o).__name__ for o in converter.operations]
        split = "ErnieFuseAndSplitTextVisionExperts" in operations
        merged = split or "MergeModulelist" in operations
        share = self._shares[parameter] if split else (0, 1)
        parts, patterns = [], converter.source_patterns
        if "Dequantize" in operations[0] and len(sources) == 1:
            patterns = patterns[:1]  # of a checkpoint that is not quantized
        for pattern in patterns:
            names = sources.get(pattern)
            if not names:
                raise ValueError(f"the checkpoint has no {pattern} for {parameter}")
            names = (self._of_experts(parameter, names, shape[0], share) if merged
                     else [self._single(parameter, names)])
            parts.append(self._stored(names, (shape[0], None, None)))
        for operation in converter.operations:
            parts = _apply(parameter, operation, parts, shape)
        return self._checked(parameter, parts[0], shape)

    @staticmethod
    def _single(parameter, names):
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} both are {parameter}")
        return names[0]

    @staticmethod
    def _of_experts(parameter, names, count, share):
        """Names by the number of their expert: every one once. share: (which, of how many) equal
        parts of all numbers are this parameter's."""
        by_number = {}
        for name in names:
            number = int(re.findall(r"\.(\d+)(?=\.)", name)[-1])
            if number in by_number:
                raise ValueError(f"{by_number[number]} and {name} both are expert {number} of "
                                 f"{parameter}")
            by_number[number] = name
        wanted = set(range(count * share[1]))
        if missing := wanted - set(by_number):
            raise ValueError(f"the checkpoint has no expert {min(missing)} for {parameter}, which "
                             f"has {count}; there are {len(by_number)} such as {names[0]}")
        if extra := set(by_number) - wanted:
            raise ValueError(f"{by_number[min(extra)]}: {parameter} has {count} experts")
        return [by_number[number] for number in range(count * share[0], count * (share[0] + 1))]

    def _stored(self, names, shape):
        tensors = [self._tensors[name] for name in names]
        for name, tensor in zip(names, tensors):
            if isinstance(tensor, str):
                raise ValueError(f"{name} is of type {tensor}; experts may be BF16, F16 or F32")
            if tensor.shape != tensors[0].shape:
                raise ValueError(f"{name} is {list(tensor.shape)}, {names[0]} is "
                                 f"{list(tensors[0].shape)}")
        size = tuple(tensors[0].shape)
        if len(size) == 2 and shape[2] == 1:
            size = (*size, 1)  # biases
        elif len(size) == 2 and len(names) == 1 and None not in shape:
            size = (shape[0], size[0] // max(shape[0], 1), size[1])  # experts below each other
        elif len(size) == 2:
            size = (len(names), *size)
        if len(size) != 3:
            raise ValueError(f"{names[0]} is {list(size)}, which are no matrices")
        return stacks.Stored(tensors, size)

    def _checked(self, parameter, stack, shape):
        if stack.shape != tuple(shape):
            raise ValueError(f"{parameter} is {list(stack.shape)} in {self.names(parameter)[0]}, "
                             f"the model wants {list(shape)}")
        return stack


def _apply(parameter, operation, parts, shape):
    """One of transformers' conversions, on stacks."""
    name = type(operation).__name__
    if name == "MergeModulelist" and operation.dim == 0 or "Dequantize" in name and len(parts) == 1:
        return parts
    if name == "ErnieFuseAndSplitTextVisionExperts":  # which half it is, its names have said
        return [stacks.Joined(parts)] if operation.concat_dim == 1 else parts
    if name == "Concatenate" and operation.dim == 1:
        return [stacks.Joined(parts)]
    if name == "Transpose" and {operation.dim0, operation.dim1} in ({1, 2}, {0, 1}):
        keep = getattr(operation, "check_dims", False) and parts[0].shape == tuple(shape)
        return parts if keep else [stacks.Turned(part) for part in parts]
    if name == "Interleave" and operation.dim == 1 and not operation.inverse:
        return [stacks.deinterleaved(part) for part in parts]
    raise ValueError(f"{parameter} is stored in a form that libmoert does not read: transformers "
                     f"makes it by {operation}")
