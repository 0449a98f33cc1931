"""Stacks of matrices, one an expert, as a parameter of a model has them, over the files of a
checkpoint as they lie. Nothing is read before a block of one matrix is asked for."""
import torch

_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class Stack:
    """shape: (experts, rows, cols); dtypes: the torch types in which it is stored."""

    def __init__(self, shape, dtypes):
        self.shape, self.dtypes = tuple(shape), frozenset(dtypes)

    def block(self, expert, rows, cols):
        """Rows and columns, ranges of step 1, of one expert's matrix."""
        raise NotImplementedError

    def rows(self, expert, first, count):
        return self.block(expert, range(first, first + count), range(self.shape[2]))


class Stored(Stack):
    """tensors: one of all experts, or one of each."""

    def __init__(self, tensors, shape):
        super().__init__(shape, {_TYPES[t.dtype] for t in tensors})
        self._tensors = tensors

    def block(self, expert, rows, cols):
        _, height, width = self.shape
        one_each = len(self._tensors) > 1 or self.shape[0] == 1
        tensor = self._tensors[expert if one_each else 0]
        base = cols.start + (0 if one_each else expert * height * width)
        if len(cols) == width:
            data = tensor.read(base + rows.start * width, len(rows) * width)
        else:
            data = b"".join(tensor.read(base + row * width, len(cols)) for row in rows)
        flat = torch.frombuffer(bytearray(data), dtype=_TYPES[tensor.dtype])
        return flat.view(len(rows), len(cols))


class Turned(Stack):
    """Rows and columns swapped."""

    def __init__(self, stack):
        experts, rows, cols = stack.shape
        super().__init__((experts, cols, rows), stack.dtypes)
        self._stack = stack

    def block(self, expert, rows, cols):
        return self._stack.block(expert, cols, rows).t()


class Joined(Stack):
    """The rows of several stacks, one after another."""

    def __init__(self, stacks):
        experts, _, cols = stacks[0].shape
        if any(s.shape[::2] != (experts, cols) for s in stacks):
            raise ValueError("matrices of " + " and ".join(str(list(s.shape)) for s in stacks) +
                             " cannot be joined")
        super().__init__((experts, sum(s.shape[1] for s in stacks), cols),
                         frozenset.union(*(s.dtypes for s in stacks)))
        self._stacks = stacks

    def block(self, expert, rows, cols):
        parts, base = [], 0
        for stack in self._stacks:
            first, end = max(rows.start, base), min(rows.stop, base + stack.shape[1])
            if first < end:
                parts.append(stack.block(expert, range(first - base, end - base), cols))
            base += stack.shape[1]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Rows(Stack):
    """Every `step`-th row of a stack from row `first` on, `count` of them."""

    def __init__(self, stack, first, count, step=1):
        super().__init__((stack.shape[0], count, stack.shape[2]), stack.dtypes)
        self._stack, self._first, self._step = stack, first, step

    def block(self, expert, rows, cols):
        if not rows:
            return self._stack.block(expert, rows, cols)
        first = self._first + rows.start * self._step
        end = first + (len(rows) - 1) * self._step + 1
        return self._stack.block(expert, range(first, end), cols)[::self._step]


def deinterleaved(stack):
    """Rows 0, 2, 4, ... and then 1, 3, 5, ..."""
    half = stack.shape[1] // 2
    return Joined([Rows(stack, 0, half, 2), Rows(stack, 1, half, 2)])
