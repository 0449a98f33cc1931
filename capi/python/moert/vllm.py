"""The vLLM plug-in: `vllm.general_plugins` calls register() in every process of vLLM.

    LLM("model-dir", quantization="moert", enforce_eager=True,
        hf_overrides={"quantization_config": {"quant_method": "moert", "budget": "8GiB"}})
"""


def register():
    """Makes the quantization "moert" known. Loads vLLM's layers, so it is not done at import."""
    from . import vllm_experts
    vllm_experts.register()
