"""Experts shared by two processes, over gloo, or by NCCL on two devices: the same logits as one
process, on every rank."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

sys.path.insert(0, os.path.dirname(__file__))
import models  # noqa: E402

import moert  # noqa: E402
import moert.distributed  # noqa: E402

IDS = [[5, 9, 33, 71, 8, 64, 12], [99, 4, 17, 23, 51, 6, 88]]


def results_of_rank(folder, rank, options):
    """(rank, logits, text, experts, bytes of one), of a model that the default group shares."""
    device = options.setdefault("device", "cpu")
    model = moert.from_pretrained(f"{folder}/model", budget="60%", dtype="float32",
                                  numerics="f32" if device == "cpu" else "bf16",
                                  cache_dir=f"{folder}/cache{rank}", group=dist.group.WORLD,
                                  **options)
    ids = torch.tensor(IDS, device=device)
    logits = model(ids).logits.cpu()
    text = model.generate(ids[:1], max_new_tokens=4, do_sample=False)
    memory = model.moert.memory()
    return rank, logits.numpy(), text.tolist(), memory.total_experts, memory.block_bytes


def rank_main(rank, ranks, folder, options, results):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank,
                            world_size=ranks)
    try:
        results.put(results_of_rank(folder, rank, options))
    except Exception as failed:
        results.put((rank, f"{type(failed).__name__}: {failed}"))
        raise
    finally:
        dist.destroy_process_group()


def torchrun_main(backend, folder, options):
    """A rank as torchrun starts it: distributed_test.py BACKEND FOLDER OPTIONS."""
    rank, options = int(os.environ["RANK"]), json.loads(options)
    if backend == "nccl":
        torch.cuda.set_device(rank)
        options["device"] = f"cuda:{rank}"
    dist.init_process_group(backend)
    torch.save(results_of_rank(folder, rank, options), f"{folder}/result{rank}")
    dist.destroy_process_group()


def torchrun(backend):
    """What each of two ranks says, as shared() has it."""
    def run(folder, **options):
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                        "--nproc-per-node=2", pathlib.Path(__file__), backend, folder,
                        json.dumps(options)], check=True, timeout=300)
        return [torch.load(f"{folder}/result{rank}", weights_only=False) for rank in range(2)]
    return run


def shared(folder, **options):
    """What each of two ranks says."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=rank_main, args=(rank, 2, folder, options, results))
                 for rank in range(2)]
    for process in processes:
        process.start()
    found = sorted((results.get() for _ in processes), key=lambda r: r[0])
    for process in processes:
        process.join()
    return found


class Distributed(unittest.TestCase):
    def check(self, name, options, bound=1e-4, launch=shared, **changes):
        """[(experts, bytes of one)] of each rank, whose logits are the model's own."""
        with tempfile.TemporaryDirectory() as folder:
            model = models.make(name, **changes)
            model.save_pretrained(f"{folder}/model")
            found = launch(folder, **options)
        with torch.no_grad():
            logits = model(torch.tensor(IDS)).logits
            text = model.generate(torch.tensor(IDS[:1]), max_new_tokens=4, do_sample=False).tolist()
        for _, mine, *_ in found:
            self.assertNotIsInstance(mine, str, mine)
            self.assertLess((torch.from_numpy(mine) - logits).abs().max().item(), bound)
        if bound < 1e-3:  # else another token may be as likely
            self.assertEqual([written for _, _, written, *_ in found], [text, text])
        return [rest for _, _, _, *rest in found]

    def test_tensor_parallel(self):
        """Library's routers, and shared experts in slices."""
        whole = self.check("Qwen2Moe", {"parallel": "tensor"}, moe_intermediate_size=128,
                           shared_expert_intermediate_size=128)
        self.assertEqual([experts for experts, _ in whole], [24, 24])
        self.assertLess(whole[0][1], 3 * 128 * 64 * 2)  # bytes of a whole expert

    def test_expert_parallel(self):
        """The model's own routers and shared experts."""
        self.assertEqual([experts for experts, _ in self.check("DeepseekV3", {})], [8, 8])

    def test_expert_parallel_by_the_library(self):
        self.assertEqual([experts for experts, _ in self.check("Qwen2Moe", {})], [12, 12])

    @unittest.skipUnless(torch.cuda.is_available() and moert.probe().cuda_usable, "no CUDA device")
    def test_on_one_cuda_device(self):
        for parallel in ("expert", "tensor"):
            self.check("Qwen2Moe", {"parallel": parallel, "device": "cuda"}, bound=0.1,
                       moe_intermediate_size=128, shared_expert_intermediate_size=128)

    def test_torchrun(self):
        self.check("Qwen2Moe", {"parallel": "tensor"}, launch=torchrun("gloo"),
                   moe_intermediate_size=128, shared_expert_intermediate_size=128)

    @unittest.skipUnless(torch.cuda.device_count() > 1 and moert.probe().cuda_usable,
                         "fewer than two CUDA devices")
    def test_nccl_on_two_devices(self):
        for parallel, part in (("expert", [12, 12]), ("tensor", [24, 24])):
            with self.subTest(parallel):
                found = self.check("Qwen2Moe", {"parallel": parallel}, bound=0.1,
                                   launch=torchrun("nccl"), moe_intermediate_size=128,
                                   shared_expert_intermediate_size=128)
                self.assertEqual([experts for experts, _ in found], part)

    def test_what_cannot_be_shared(self):
        class Two(moert.distributed.Ranks):
            def __init__(self, parallel):
                self._parallel, self._rank, self._ranks = parallel, 1, 2
        def source(experts, width):
            return moert.Source.from_weights("w", [moert.Source.layer(
                num_experts=experts, hidden=64, intermediate=width)], lambda *what: b"")
        self.assertEqual(Two("expert").shard(source(7, 64)),
                         {"first_expert": 3, "num_experts": 4, "shared_experts": False})
        self.assertEqual(Two("tensor").shard(source(7, 200)),
                         {"first_channel": 128, "num_channels": 72})
        with self.assertRaisesRegex(ValueError, r"2 ranks cannot share layers of \[1\] experts"):
            Two("expert").shard(source(1, 64))
        with self.assertRaisesRegex(ValueError, r"width \[64\].*64 channels a rank"):
            Two("tensor").shard(source(7, 64))
        with self.assertRaisesRegex(ValueError, "legal are 'expert' and 'tensor'"):
            moert.distributed.Ranks(None, "pipeline")


if __name__ == "__main__":
    if "RANK" in os.environ:
        torchrun_main(*sys.argv[1:])
    else:
        unittest.main()
