"""The vLLM plug-in with vLLM's own layer classes, on the CPU: no engine of vLLM runs."""
import os
import sys
import tempfile
import types
import unittest

os.environ["VLLM_TARGET_DEVICE"] = "cpu"
sys.path.insert(0, os.path.dirname(__file__))
import models  # noqa: E402
import torch  # noqa: E402
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import (init_distributed_environment,  # noqa: E402
                              initialize_model_parallel)
from vllm.model_executor.layers.fused_moe import FusedMoEFactory  # noqa: E402
from vllm.model_executor.layers.quantization import get_quantization_config  # noqa: E402

import moert.vllm  # noqa: E402


class Plugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.config = VllmConfig(device_config=DeviceConfig("cpu"))
        cls.scope = set_current_vllm_config(cls.config)
        cls.scope.__enter__()
        cls.meeting = tempfile.NamedTemporaryFile()
        init_distributed_environment(1, 0, f"file://{cls.meeting.name}.store", 0, "gloo")
        initialize_model_parallel()
        moert.vllm.register()

    def layers(self, folder, **options):
        quantization = get_quantization_config("moert").from_config(
            {"quant_method": "moert", "model": folder, "numerics": "f32", **options})
        return quantization, [
            FusedMoEFactory(num_experts=8, top_k=2, hidden_size=64, intermediate_size=32,
                            params_dtype=torch.float32, renormalize=True,
                            quant_config=quantization,
                            prefix=f"{self.id()}.layers.{layer}.mlp.experts") for layer in range(3)]

    def test_layers(self):
        model = models.make("Qwen3Moe", norm_topk_prob=True)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            quantization, runners = self.layers(folder, budget="40%")
            x = torch.randn(5, 64).bfloat16().float()
            for runner in runners:
                experts = runner.routed_experts
                self.assertEqual([name for name, _ in experts.named_parameters()], [])
                names = list(experts.load_weights([("0.gate_proj.weight", torch.zeros(32, 64))]))
                self.assertEqual(names, ["0.gate_proj.weight"])
            for runner in runners:
                runner.routed_experts.quant_method.process_weights_after_loading(
                    runner.routed_experts)
            for layer, runner in enumerate(runners):
                block = model.model.layers[layer].mlp
                _, weights, ids = block.gate(x)
                with torch.no_grad():
                    expected = block.experts(x, ids, weights)
                got = runner.routed_experts.forward_modular(x, weights.detach(), ids.int())
                self.assertLess((got - expected).abs().max().item(), 1e-4, layer)
            engine = quantization.passes(torch.device("cpu")).engine
            self.assertEqual(engine.layers, 3)
            self.assertGreater(engine.stats().loads, 0)

    def test_ranks(self):
        """What vLLM has dealt to a rank, as the engine's shard."""
        from moert.vllm_experts import _shard

        def layer(expert_map, **parallel):
            moe = types.SimpleNamespace(intermediate_size_per_partition=64,
                                        moe_parallel_config=types.SimpleNamespace(**parallel))
            return types.SimpleNamespace(expert_map=expert_map, moe_config=moe)
        dealt = layer(torch.tensor([-1, 0, -1, 1]), tp_size=1)
        self.assertEqual(_shard([dealt, dealt]),
                         {"shared_experts": False, "experts": [[1, 3], [1, 3]]})
        self.assertEqual(_shard([layer(None, tp_size=2, tp_rank=1)]),
                         {"shared_experts": False, "first_channel": 64, "num_channels": 64})
        self.assertEqual(_shard([layer(None, tp_size=1)]), {"shared_experts": False})

    def test_bad_options(self):
        with self.assertRaisesRegex(ValueError, "no 'bugdet', legal are budget"):
            self.layers("nowhere", bugdet="8GiB")


if __name__ == "__main__":
    unittest.main()
