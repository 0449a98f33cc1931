"""The whole example decoder beside llama.cpp, from docs/results/data/decoder.json: what
`moert-bench model --json` wrote."""
import digest
import experiment


def table():
    measured = digest.data("decoder")
    rivals = digest.data("rivals")["tables"]["Whole decoders"]
    stock = dict(zip(rivals["columns"][:4], rivals["rows"][0]))  # all of it on the device
    rows = []
    for row in measured["decode"]:
        rival = stock["llama.cpp decode"] if row["batch"] == 1 else ""
        rows.append((f"decode, batch {row['batch']}", row["step_ms"], row["tokens_per_s"], rival))
    for row in measured["prompts"]:
        rival = next((v for c, v in stock.items() if c == f"prompt {row['tokens']}"), "")
        rows.append((f"prompt of {row['tokens']:,}", row["ms"], row["tokens_per_s"], rival))
    return experiment.table(
        ["48 layers, w4, all experts resident", "ms a step", "tokens/s", "llama.cpp, tokens/s"],
        [[name, f"{ms['median']:.2f} ({ms['min']:.2f} to {ms['max']:.2f})", f"{rate:,.0f}", rival]
         for name, ms, rate, rival in rows])
