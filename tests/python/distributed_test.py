"""Experts shared by two processes over gloo: the same logits as one process, on every rank."""
import os
import pathlib
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

sys.path.insert(0, os.path.dirname(__file__))
import models  # noqa: E402

import moert  # noqa: E402
import moert.checkpoint_experts  # noqa: E402
import moert.distributed  # noqa: E402

IDS = [[5, 9, 33, 71, 8, 64, 12], [99, 4, 17, 23, 51, 6, 88]]


def rank_main(rank, ranks, folder, name, parallel, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", init_method=f"file://{folder}/{parallel}", rank=rank,
                            world_size=ranks)
    try:
        model = moert.from_pretrained(f"{folder}/{name}", budget="60%", dtype="float32",
                                      numerics="f32", group=dist.group.WORLD, parallel=parallel)
        spec = model.moert.layer(0)
        logits = model(torch.tensor(IDS)).logits
        text = model.generate(torch.tensor(IDS[:1]), max_new_tokens=4, do_sample=False)
        results.put((rank, logits.numpy(), text.tolist(), spec.num_experts, spec.intermediate))
    finally:
        dist.destroy_process_group()


class Distributed(unittest.TestCase):
    def shared(self, name, parallel):
        """[(logits, text, experts, width)] of each rank, and the model alone."""
        with tempfile.TemporaryDirectory() as folder:
            model = models.make(name)
            model.save_pretrained(f"{folder}/{name}")
            context = multiprocessing.get_context("spawn")
            results = context.SimpleQueue()
            processes = [context.Process(target=rank_main,
                                         args=(rank, 2, folder, name, parallel, results))
                         for rank in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(300)
                self.assertEqual(process.exitcode, 0)
            found = sorted((results.get() for _ in processes), key=lambda r: r[0])
        with torch.no_grad():
            logits = model(torch.tensor(IDS)).logits
            text = model.generate(torch.tensor(IDS[:1]), max_new_tokens=4, do_sample=False).tolist()
        for _, mine, written, _, _ in found:
            self.assertLess((torch.from_numpy(mine) - logits).abs().max().item(), 1e-4)
            self.assertEqual(written, text)
        return [r[3:] for r in found]

    def test_tensor_parallel(self):
        self.assertEqual(self.shared("Mixtral", "tensor"), [(8, 16), (8, 16)])

    def test_expert_parallel(self):
        header = pathlib.Path(__file__).parents[2] / "capi/include/moert/c/layer.h"
        if "refused until shards exist" in header.read_text():
            self.skipTest("this library refuses ids of other ranks' experts")
        self.assertEqual(self.shared("DeepseekV3", "expert"), [(4, 32), (4, 32)])

    def test_shards(self):
        shape = moert.checkpoint_experts.Shape(7, 30, 64)
        shard = moert.distributed.Shard.__new__(moert.distributed.Shard)
        held, widths = [], 0
        for shard.rank in range(3):
            shard.parallel, shard.ranks, shard._held = "expert", 3, None
            held += shard.of(shape).held
            first, end = shard._held
            self.assertEqual(shard.local_ids(torch.arange(7)).tolist(),
                             [e - first if first <= e < end else -1 for e in range(7)])
            shard.parallel = "tensor"
            widths += shard.of(shape).part[1]
        self.assertEqual((held, widths), (list(range(7)), 30))
        with self.assertRaisesRegex(ValueError, "2 experts cannot be shared by 3 ranks"):
            shard.parallel = "expert"
            shard.of(shape._replace(experts=2))


if __name__ == "__main__":
    unittest.main()
