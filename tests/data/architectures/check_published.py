#!/usr/bin/env python3
"""Compares a fixture's logits with those of the modelling code that its publisher wrote.

    pip install torch transformers==4.57.1 safetensors
    check_published.py FIXTURE modeling_FAMILY.py CLASS

For the families that transformers does not contain. The code is not part of this project: take it
from a published checkpoint. It runs every case as one prompt, without its cache, whose interface
transformers no longer has."""
import importlib.util
import json
import os
import sys
import types

import torch
import transformers
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))


def load_module(path, config_class):
    """The file as a module of a package, beside a module with its configuration class. Names that
    transformers has dropped since the code was published get the value they had."""
    transformers.pytorch_utils.is_torch_greater_or_equal_than_1_13 = True
    if not hasattr(transformers.utils.import_utils, "is_torch_fx_available"):
        transformers.utils.import_utils.is_torch_fx_available = lambda: False
    stem = os.path.basename(path)[:-3]
    package = types.ModuleType("published")
    package.__path__ = []
    configuration = types.ModuleType("published." + stem.replace("modeling", "configuration"))
    setattr(configuration, config_class.__name__, config_class)
    sys.modules.update({"published": package, configuration.__name__: configuration})
    spec = importlib.util.spec_from_file_location("published." + stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(fixture, path, name):
    folder = os.path.join(HERE, fixture)
    with open(os.path.join(folder, "config.json")) as f:
        fields = json.load(f)
    config_class = type(name.replace("ForCausalLM", "Config"), (transformers.PretrainedConfig,),
                        {"model_type": fields["model_type"]})
    module = load_module(path, config_class)
    defaults = dict(pretraining_tp=1, attention_dropout=0.0, rope_scaling=None, attention_bias=False,
                    use_cache=False, rope_theta=10000.0)
    config = config_class(**{**defaults, **fields})
    config._attn_implementation = "eager"
    model = getattr(module, name)(config).float().eval()
    weights = load_file(os.path.join(folder, "model.safetensors"))
    missing, extra = model.load_state_dict({n: t.float() for n, t in weights.items()}, strict=False)
    missing = [n for n in missing if not n.endswith("inv_freq")]
    if missing or extra:
        sys.exit(f"{fixture}: missing {missing}, not used {extra}")
    expected = load_file(os.path.join(folder, "expected.safetensors"))
    for case in ("short", "long"):
        with torch.no_grad():
            logits = model(expected[case + ".tokens"].long(), use_cache=False).logits
        difference = (logits - expected[case + ".logits"]).abs().max().item()
        print(f"{fixture} {case}: largest difference of a logit {difference:.1e}")
        if not difference < 1e-4:
            sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
