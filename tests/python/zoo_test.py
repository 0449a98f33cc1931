"""Every Mixture-of-Experts language model that this transformers has, tiny and random: its logits
with libmoert's experts against transformers' own, in every way to open it: prompts and decoding of
one to three sequences and padding, with all experts in memory and with as few as can be.
MOERT_WRITE_TABLE=1 records what was found, of some models or of all, in zoo.json, and writes the
table of docs/reference/checkpoints.md. MOERT_ZOO_DEVICE=cuda: on a device, without a record.
  zoo_test.py [MODEL...]"""
import json
import os
import re
import sys
import tempfile

import torch
import transformers
import zoo
import zoo_table

import moert
import moert.blocks
import moert.own_products

DEVICE = os.environ.get("MOERT_ZOO_DEVICE", "cpu")
ON_CPU = DEVICE == "cpu"
# A device multiplies in bf16: what counts there is that we are as near to the fp32 model as
# transformers' own bf16 is. Later tokens of a generation may be others, and are not compared.
DTYPE, NUMERICS = (torch.float32, "f32") if ON_CPU else (torch.bfloat16, "bf16")
LIMIT = 1e-4
# {model: (why it is refused, for the table; what the error says)}
_OWN = "its own code multiplies, on the CPU alone", "CPU alone"
REFUSED = {} if ON_CPU else dict.fromkeys(
    ("inkling2", "inkling2_loop", "jetmoe", "muse_spark"), _OWN)


def runs(model):
    """{what: logits}; None where this model cannot do it."""
    random = torch.Generator().manual_seed(7)
    ids = torch.randint(3, 100, (3, 11), generator=random).to(DEVICE)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    greedy = dict(max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0,
                  output_logits=True, return_dict_in_generate=True)

    def generate(rows, **more):
        out = model.generate(input_ids=ids[:rows], **greedy, **more)
        return torch.stack(out.logits if ON_CPU else out.logits[:1], 1).float()

    def prompt(rows):
        return model(input_ids=ids[:rows]).logits.float()

    def padded():
        return model(input_ids=ids[:2], attention_mask=mask[:2]).logits.float()[mask[:2] > 0]
    calls = {**{f"prompt {b}": lambda b=b: prompt(b) for b in (1, 2, 3)},
             **{f"decode {b}": lambda b=b: generate(b) for b in (1, 2, 3)},
             "padding": padded,
             "padding, decode": lambda: generate(2, attention_mask=mask[:2])}
    return calls


def wanted(model):
    """transformers' own; what it cannot do itself is left out."""
    found = {}
    for what, call in runs(model).items():
        try:
            with torch.no_grad():
                found[what] = call()
        except Exception as error:
            if what.startswith("prompt"):
                raise
            print(f"  transformers itself: {what}: {type(error).__name__}: {str(error)[:90]}")
    return found


def error(logits, exact):
    """The largest; on a device of the middle token, as rounding may choose another expert."""
    largest = (logits - exact).abs().amax(-1)
    return (largest.max() if ON_CPU else largest.median()).item()


def limits(theirs, expected):
    """{what: how far from `expected` we may be}. theirs: their model in our precision."""
    if ON_CPU:
        return dict.fromkeys(expected, LIMIT)
    found = wanted(theirs)
    return {what: 3 * error(found[what], exact) + 1e-2 for what, exact in expected.items()}


def differences(model, expected):
    """{what: errors}, with all experts in memory and with as few as can be."""
    found = {what: [0.0, 0.0] for what in expected}
    for at, budget in enumerate((None, model.moert.memory().minimum_bytes)):
        if budget is not None:
            model.moert.set_budget(budget)
        for what, call in runs(model).items():
            if what in expected:
                with torch.no_grad():
                    found[what][at] = max(found[what][at], error(call(), expected[what]))
    return found


def ways(model_class, folder):
    """{way: a function that opens it}."""
    common = dict(dtype=DTYPE, attn_implementation="eager")
    engine = dict(budget=1.0, numerics=NUMERICS, cache_dir=folder + "/cache", max_tokens=64)

    def loaded(routing):
        return moert.from_pretrained(folder, auto_class=model_class, routing=routing, device=DEVICE,
                                     **engine, **common)

    def attached(routing):
        model = model_class.from_pretrained(folder, **common).eval().to(DEVICE)
        moert.attach(model, folder, routing=routing, **engine)
        return model

    def read():  # the library's reader, the model's router
        model = model_class.from_pretrained(folder, **common).eval().to(DEVICE)
        moert.attach(model, moert.Source.open(folder, folder + "/cache"), routing="host", **options)
        return model
    options = {name: value for name, value in engine.items() if name != "cache_dir"}
    return {"library": lambda: loaded("library"), "model": lambda: loaded("host"),
            "attach": lambda: attached(None), "reader": read}


def opens(folder):
    """Whether the library's own reader takes it."""
    try:
        moert.Source.open(folder, folder + "/cache")
    except moert.Error:
        return False
    return True


def examine(name):
    """(routers, {what: errors}, {what: their limit}, whether the library's reader reads it) of one
    model; ValueError where it is refused."""
    model = zoo.make(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)

        def theirs(dtype):
            return type(model).from_pretrained(folder, dtype=dtype,
                                               attn_implementation="eager").eval().to(DEVICE)
        expected, routers, worst, why = wanted(theirs(torch.float32)), [], {}, {}
        limit = limits(theirs(DTYPE), expected)
        reads = opens(folder)
        for way, opened in ways(type(model), folder).items():
            try:
                mine = opened()
            except (ValueError, moert.Error) as error:
                why[way] = str(error)
                continue
            if way in ("library", "model"):
                routers.append(way)
            if any(isinstance(m, moert.own_products._Held) for m in mine.modules()):
                routers = ["model, its own code multiplies"]
            else:
                assert any(isinstance(m, moert.blocks._Replacement) for m in mine.modules())
            for what, pair in differences(mine, expected).items():
                worst[what] = [max(some) for some in zip(pair, worst.get(what, pair))]
        if "attach" in why or not routers:
            raise ValueError(why.get("attach") or why["model"])
    return routers, worst, limit, reads


def found_of(name, failed):
    """What is recorded of one model; failed hears what is wrong with it."""
    try:
        routes, worst, limit, reads = examine(name)
    except ValueError as error:
        reason, text = REFUSED.get(name, (str(error)[:90], "$^"))
        if not re.search(text, str(error)):
            failed.append(f"{name}: refused: {error}")
        return {"refused": reason}
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
        return {"refused": type(error).__name__}
    if name in REFUSED or any(max(pair) > limit[what] for what, pair in worst.items()):
        failed.append(f"{name}: {worst}, legal is {limit}")
    return {"routes": routes, "read by the library": reads,
            "differences": {what: [float(f"{v:.1e}") for v in pair] for what, pair in worst.items()}}


def main(names):
    transformers.logging.set_verbosity_error()
    failed, models = [], {}
    for name in names or zoo.names():
        models[name] = found_of(name, failed)
        print(name, json.dumps(models[name]), sep=": ", flush=True)
    print(f"{zoo_table.served(models)} of {len(models)} models of transformers "
          f"{transformers.__version__}")
    if ON_CPU and os.environ.get("MOERT_WRITE_TABLE"):
        record(models, whole=not names)
    elif ON_CPU:
        failed += changed(json.loads(zoo_table.RECORD.read_text()), models)
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


def record(models, whole):
    """Writes what was found of these models, which are all of them or replace what is there."""
    if not whole:
        models = {**json.loads(zoo_table.RECORD.read_text())["models"], **models}
    lines = ",\n".join(f'  "{name}": {json.dumps(one)}' for name, one in sorted(models.items()))
    zoo_table.RECORD.write_text(f'{{"transformers": "{transformers.__version__}", "models": '
                                f'{{\n{lines}\n}}}}\n')
    zoo_table.main(["--write"])


def changed(recorded, models):
    """Models whose outcome is not the recorded one, unless that is of another transformers."""
    if recorded["transformers"] != transformers.__version__:
        return []

    def kind(one):
        return {key: one.get(key) for key in ("routes", "read by the library", "refused")}
    return [f"{name}: zoo.json has another outcome; MOERT_WRITE_TABLE=1 records it"
            for name in models if kind(recorded["models"].get(name, {})) != kind(models[name])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
