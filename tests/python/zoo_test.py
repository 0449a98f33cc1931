"""Every Mixture-of-Experts language model that this transformers has, tiny and random: its logits
with libmoert's experts against transformers' own, in every way to open it. Prints the table of
docs/reference/checkpoints.md; MOERT_WRITE_TABLE=1 writes it there.
  zoo_test.py [MODEL...]"""
import os
import pathlib
import re
import sys
import tempfile

import torch
import transformers
import zoo

import moert
import moert.blocks

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/checkpoints.md"
LIMIT = 1e-4
KINDS = ("prompt", "decode", "padding")
# {model: (why it is refused, for the table; what the error says)}
_CAPS = "soft caps between the products", "what it computes between its products"
REFUSED = {
    "inkling2": _CAPS,
    "inkling2_loop": _CAPS,
    "jetmoe": ("experts sorted by token, in attention too", "no MoE block"),
    "muse_spark": ("a norm behind every expert", "its parameters are .*post_expert_norm"),
}


def runs(model):
    """{what: logits}; None where this model cannot do it."""
    random = torch.Generator().manual_seed(7)
    ids = torch.randint(3, 100, (3, 11), generator=random)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    greedy = dict(max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0,
                  output_logits=True, return_dict_in_generate=True)

    def generate(rows, **more):
        out = model.generate(input_ids=ids[:rows], **greedy, **more)
        return torch.stack(out.logits, 1).float()

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


def differences(model, expected):
    """{what: the largest difference}, with all experts in memory and with as few as can be."""
    found = dict.fromkeys(expected, 0.0)
    for budget in (None, model.moert.memory().minimum_bytes):
        if budget is not None:
            model.moert.set_budget(budget)
        for what, call in runs(model).items():
            if what in expected:
                with torch.no_grad():
                    value = (call() - expected[what]).abs().max().item()
                found[what] = max(found[what], value)
    return found


def ways(model_class, folder):
    """{way: a function that opens it}."""
    common = dict(dtype=torch.float32, attn_implementation="eager")
    engine = dict(budget=1.0, numerics="f32", cache_dir=folder + "/cache", max_tokens=64)

    def loaded(routing):
        return moert.from_pretrained(folder, auto_class=model_class, routing=routing, **engine,
                                     **common)

    def attached(routing):
        model = model_class.from_pretrained(folder, **common).eval()
        moert.attach(model, folder, routing=routing, **engine)
        return model
    return {"library": lambda: loaded("library"), "model": lambda: loaded("host"),
            "attach": lambda: attached(None)}


def examine(name):
    """(routers, {what: difference}) of one model; ValueError where it is refused."""
    model = zoo.make(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        reference = type(model).from_pretrained(folder, dtype=torch.float32,
                                                attn_implementation="eager").eval()
        expected, routers, worst, why = wanted(reference), [], {}, {}
        for way, opened in ways(type(model), folder).items():
            try:
                mine = opened()
            except (ValueError, moert.Error) as error:
                why[way] = str(error)
                continue
            if way != "attach":
                routers.append(way)
            assert any(isinstance(m, moert.blocks._Replacement) for m in mine.modules())
            for what, value in differences(mine, expected).items():
                worst[what] = max(worst.get(what, 0.0), value)
        if "attach" in why or not routers:
            raise ValueError(next(iter(reversed(why.values()))))
    return routers, worst


def _bound(values):
    """A power of ten that none of them is above."""
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    return next(f"1e-{n}" for n in range(5, -3, -1) if max(values) <= 10.0 ** -n)


def outcome(routers, worst):
    """(who routes, a bound of each kind), by which the table groups the models."""
    return (", ".join(routers),
            *(_bound([v for what, v in worst.items() if what.startswith(kind)]) for kind in KINDS))


def table(outcomes):
    """outcomes: {model: (who routes, bounds)}."""
    groups = {}
    for name, cells in outcomes.items():
        groups.setdefault(cells, []).append(name)
    rows = [("who routes", *KINDS, "models"), ("---",) * 5,
            *((*cells, ", ".join(names)) for cells, names in sorted(groups.items()))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace(" --- ", "---")


def main(names):
    transformers.logging.set_verbosity_error()
    outcomes, failed, served = {}, [], 0
    for name in names or zoo.names():
        try:
            routers, worst = examine(name)
        except ValueError as error:
            reason, text = REFUSED.get(name, (str(error)[:90], "$^"))
            if not re.search(text, str(error)):
                failed.append(f"{name}: refused: {error}")
            outcomes[name] = (f"refused: {reason}", "-", "-", "-")
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
            outcomes[name] = ("failed", "-", "-", "-")
        else:
            served += 1
            if name in REFUSED or max(worst.values()) > LIMIT:
                failed.append(f"{name}: {worst}")
            outcomes[name] = outcome(routers, worst)
        print(name, *outcomes[name], sep=" | ", flush=True)
    print(f"{served} of {len(outcomes)} models of transformers {transformers.__version__}")
    if not names:
        text = PAGE.read_text()
        begin, end = (text.index(f"<!-- zoo {edge} -->") for edge in ("begins", "ends"))
        section = f"<!-- zoo begins -->\n{table(outcomes)}\n"
        if os.environ.get("MOERT_WRITE_TABLE"):
            PAGE.write_text(text[:begin] + section + text[end:])
        elif text[begin:end] != section:
            print(f"{PAGE.name}: its table is another; MOERT_WRITE_TABLE=1 writes it")
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
