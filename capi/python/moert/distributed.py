"""Experts shared by the ranks of a torch.distributed process group. Every rank sees every token and
computes what its engine holds; the sum over ranks is the block's output."""
import torch.distributed as dist


class Ranks:
    """How the ranks of a group share: "expert": each a range of every layer's experts; "tensor":
    each a range of every expert's width. Ranges are as even as they can be, in the order of
    ranks."""

    def __init__(self, group, parallel):
        if parallel not in ("expert", "tensor"):
            raise ValueError(f"parallel is {parallel!r}, legal are 'expert' and 'tensor'")
        self._group, self._parallel = group, parallel
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)

    @property
    def some_experts(self):
        """Whether a rank has some of the experts, each of them whole."""
        return self._parallel == "expert"

    def _range(self, count):
        return (count * self._rank // self._ranks, count * (self._rank + 1) // self._ranks)

    def shard(self, source):
        """This rank's part, as Engine takes it."""
        specs = [source.spec(layer) for layer in range(source.layers)]
        if self._parallel == "expert":
            counts = {spec.num_experts for spec in specs}
            if len(counts) != 1 or min(counts) < self._ranks:
                raise ValueError(f"{self._ranks} ranks cannot share layers of {sorted(counts)} "
                                 "experts: every layer wants as many, and one a rank")
            first, end = self._range(counts.pop())
            return {"first_expert": first, "num_experts": end - first,
                    "shared_experts": self._rank == 0}
        # Channels are dealt in what can be cut out of a record: tiles, or quantization groups.
        unit = 64 if all(name == "bf16" for name, _ in source.versions()) else 128
        widths = {spec.intermediate for spec in specs}
        width = min(widths)
        if len(widths) != 1 or width < unit * self._ranks:
            raise ValueError(f"{self._ranks} ranks cannot share experts of width {sorted(widths)}: "
                             f"every layer wants the same, and {unit} channels a rank")
        first, end = (min(width, unit * edge) for edge in self._range(-(-width // unit)))
        return {"first_channel": first, "num_channels": end - first}

    def sum(self, out):
        dist.all_reduce(out, group=self._group)
        return out
