"""Experts shared by the ranks of a torch.distributed process group. Every rank sees every token and
computes what it holds; the sum over ranks is the block's output."""
import torch
import torch.distributed as dist


class Shard:
    """What a rank holds: "expert": a range of every layer's experts; "tensor": a range of every
    expert's width. Ranges are as even as they can be, in the order of ranks."""

    def __init__(self, group, parallel):
        if parallel not in ("expert", "tensor"):
            raise ValueError(f"parallel is {parallel!r}, legal are 'expert' and 'tensor'")
        self.group, self.parallel = group, parallel
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._held = None  # numbers of the experts here; None: all

    def _range(self, count):
        return (count * self.rank // self.ranks, count * (self.rank + 1) // self.ranks)

    def of(self, shape):
        """This rank's part of a layer's experts."""
        if self.parallel == "expert":
            if shape.experts < self.ranks:
                raise ValueError(f"{shape.experts} experts cannot be shared by {self.ranks} ranks")
            first, end = self._range(shape.experts)
            self._held = first, end
            return shape._replace(held=tuple(range(first, end)))
        if shape.width < self.ranks:
            raise ValueError(f"a width of {shape.width} cannot be shared by {self.ranks} ranks")
        first, end = self._range(shape.width)
        return shape._replace(part=(first, end - first))

    def local_ids(self, ids):
        """Expert numbers as the engine here counts them; -1: another rank's."""
        if self._held is None:
            return ids
        first, end = self._held
        return torch.where((ids >= first) & (ids < end), ids - first, -1)

    def sum(self, out):
        dist.all_reduce(out, group=self.group)
        return out
