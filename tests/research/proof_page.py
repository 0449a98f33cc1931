"""The table and the picture of docs/results/beside-four.md, from what rivals.json and transformers.json keep."""
import re

import experiment
import report
import transformers_page

HEAD = ["program", "experts", "25 % in GPU memory, tokens/s", "50 %", "100 %", "prompt of 2,048 at 25 %, tokens/s"]
SHARES = ("25 %", "50 %", "100 %")


def stored(name):
    """A table of rivals.json as [{column: cell}], with `share` beside; columns of a name twice count as (name, 1)."""
    table = report.load_tables("rivals")["tables"][name]
    counts, columns = {}, []
    for column in table["columns"]:
        columns.append((column, counts.get(column, 0)))
        counts[column] = counts.get(column, 0) + 1
    rows = []
    for cells in table["rows"]:
        row = dict(zip(columns, cells))
        row["share"] = re.search(r"\d+ %|$", cells[0])[0]
        rows.append(row)
    return rows


def column(rows, name, at=0):
    return {row["share"]: row[name, at] for row in rows if row[name, at]}


def transformers(mode, share):
    """Of a mode: tokens/s, tokens/s of a prompt of 2,048, and the share of hits."""
    for row in transformers_page.stored()["rows"]:
        if row["mode"].split(", experts of")[0] == mode and transformers_page.share(row) == share:
            prompt = row.get("prompt_2048_ms")
            hits = f"{100 * row['hits']:.0f} %" if "hits" in row else ""
            return (transformers_page.rate(row["tokens_per_s"]).split(" ")[0],
                    f"{2048e3 / prompt[0]:,.0f}" if prompt else "", hits)
    return "", "", ""


def lines():
    """(program, experts, {share: tokens/s}, tokens/s of a prompt)."""
    plug_in, prompts = (stored(f"llama.cpp with the plug-in, {what}") for what in ("on a GPU", "prompts on a GPU"))
    ik_before = column(stored("Whole decoders"), "prompt 2048", 1)["25 %"]
    theirs = {"25 %": transformers("transformers, accelerate", "25 %")[0],
              "100 %": transformers("transformers, compiled", "100 %")[0]}
    ours = {share: transformers("libmoert, w4a16_g128, compiled", share)[0] for share in SHARES}
    _, prompt, hits = transformers("libmoert, w4a16_g128, compiled", "25 %")
    return [
        ("llama.cpp", "q4_0", column(plug_in, "llama.cpp, token"), column(prompts, "llama.cpp", 1)["25 %"]),
        ("ik_llama.cpp", "q4_0", column(plug_in, "ik_llama.cpp, token"),
         f"{column(prompts, 'ik_llama.cpp', 1)['25 %']}; {ik_before} with another file"),
        ("transformers, accelerate", "bf16", theirs, ""),
        ("KTransformers", "", {}, ""),
        ("llama.cpp with libmoert, some experts favoured", "q4_0", column(plug_in, "token, some favoured"),
         column(prompts, "2,048, some favoured")["25 %"]),
        ("llama.cpp with libmoert, uniform routing", "q4_0", column(plug_in, "token, uniform"),
         column(prompts, "uniform", 1)["25 %"]),
        (f"transformers with libmoert, {hits} hits", "w4a16_g128", ours, prompt),
    ]


def table():
    rows = [[name, experts or "not run", *(rates.get(share, "") for share in SHARES), prompt]
            for name, experts, rates, prompt in lines()]
    return experiment.table(HEAD, rows)


def bars():
    """(label, tokens/s) with a quarter of the experts in GPU memory; 0: not run."""
    short = {"transformers, accelerate": "accelerate", "KTransformers": "KTransformers:\nnot run",
             "llama.cpp with libmoert, some experts favoured": "libmoert in\nllama.cpp, favoured",
             "llama.cpp with libmoert, uniform routing": "libmoert in\nllama.cpp, uniform"}
    label = lambda name: short.get(name, name.replace("transformers with libmoert, ", "libmoert in\ntransformers, "))
    return [(label(name), float(rates.get("25 %", "0").replace(",", ""))) for name, _, rates, _ in lines()]
