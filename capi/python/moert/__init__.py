"""libmoert from Python: Mixture-of-Experts models bigger than the memory they run in.

    model = moert.from_pretrained("model-dir", budget="8GiB")      # a transformers model

or layer by layer, with nothing but the standard library:

    source = moert.Source.open("model-dir")
    engine = moert.Engine(source, budget="25%")
    with engine.step("decode", rows=1) as step:
        for layer in range(engine.layers):
            step.forward(layer, x, y)

Arrays are anything with memory of its own: torch tensors (fp32, bf16, fp16; on the CPU, or on the
engine's CUDA device), numpy arrays (fp32, fp16), array.array("f"). They are used in place, [rows,
hidden]. Calls release the interpreter's lock, so threads may share an engine.
"""
from . import _c
from ._c import LayerSpec, Memory, Stats
from .engine import Engine, Step, plan
from .errors import Error
from .errors import check as _check
from .source import Source

__all__ = ["Engine", "Error", "LayerSpec", "Memory", "Source", "Stats", "Step", "attach",
           "from_pretrained", "open_experts", "plan", "probe", "strategies", "version"]


def version():
    """Of the library that runs."""
    return _c.lib.moert_version_string().decode()


def probe():
    """What this machine and this build have, as ProbeInfo (moert_probe)."""
    info = _c.init(_c.ProbeInfo)
    _check(_c.lib.moert_probe, _c.c.byref(info))
    return info


def strategies():
    """Strategies of this process: {name: (summary, key help)}."""
    found = {}
    for index in range(_c.lib.moert_strategy_count()):
        info = _c.init(_c.StrategyInfo)
        _check(_c.lib.moert_strategy_at, index, _c.c.byref(info))
        found[info.name.decode()] = (info.summary.decode(), info.keys.decode())
    return found


def open_experts(model_dir, schemes=None, cache_dir=None):
    """The experts of a checkpoint, as stored or quantized into the cache folder, as a Source."""
    from . import pack_cache
    if schemes:
        return pack_cache.quantized(model_dir, schemes, cache_dir)
    return Source.open(model_dir, cache_dir)


def from_pretrained(path, **options):
    """A transformers model whose experts libmoert holds: see moert.transformers.from_pretrained."""
    from .transformers import from_pretrained as load
    return load(path, **options)


def attach(model, experts, **options):
    """Gives a transformers model's experts to libmoert: see moert.transformers.attach."""
    from .transformers import attach as give
    return give(model, experts, **options)
