"""The whole example decoder, from docs/results/data/decoder.json: what
`moert-bench model --json` wrote."""
import digest
import experiment


def table():
    measured = digest.data("decoder")
    rows = [(f"decode, batch {row['batch']}", row["step_ms"], row["tokens_per_s"]) for row in measured["decode"]]
    rows += [(f"prompt of {row['tokens']:,}", row["ms"], row["tokens_per_s"]) for row in measured["prompts"]]
    return experiment.table(["48 layers, w4, all experts resident", "ms a step", "tokens/s"],
                            [[name, f"{ms['median']:.2f} ({ms['min']:.2f} to {ms['max']:.2f})", f"{rate:,.0f}"]
                             for name, ms, rate in rows])
