#!/usr/bin/env python3
"""What fits one consumer card, and how fast it is expected to decode there: arithmetic over published shapes, for
tests/research/pages.py. Nothing of it was measured on such a card."""

GB = 1e9
CONTEXT = 4096
# Bits a weight of the files that people take: MXFP4 as published, else Q4_K_M.
EXPERT_BITS = {"mxfp4": 4.25, "w4a16_g128": 4.85}
DENSE_BITS = {"mxfp4": 8.5, "w4a16_g128": 5.5}
CARDS = [("8 GB", 8, 272), ("12 GB", 12, 504), ("16 GB", 16, 448), ("24 GB", 24, 936), ("32 GB", 32, 1792)]
MEMORIES = [("DDR4-3200", 51.2), ("DDR5-6000", 96)]  # two channels, GB/s at most
MEMORY_SIZES = (32, 64, 128, 256)
DEVICE_SHARE, MEMORY_SHARE = 0.6, 0.8  # of those rates that products of one token reach
# A layer of llama.cpp beside its bytes, what the plug-in adds, and what a layer of experts on the CPU adds: of a sitting
# of decoding on an H200, all experts on the GPU, and 25 %.
LAYER_S, SHARED_S, CPU_LAYER_S = 75e-6, 40e-6, 110e-6
LEAST_SHARE = 0.05  # with fewer experts on the card both programs are as fast as the RAM
RESERVE = 1  # GB of the card for workspaces and a screen


def attention(hidden, heads, kv_heads, dim):
    return hidden * dim * 2 * (heads + kv_heads)


def models():
    """name, shape, scheme, MoE layers, experts, top k, weights of an expert, other weights, those that are only a table,
    bytes of keys and values a token."""
    def row(name, shape, scheme, layers, experts, top_k, hidden, width, other, vocabulary, kv):
        table = vocabulary * hidden
        return {"name": name, "shape": shape, "scheme": scheme, "layers": layers, "experts": experts, "top_k": top_k,
                "expert": 3 * hidden * width, "dense": other + table, "table": table, "kv": kv}
    delta = 2048 * (2 * 2048 + 2 * 4096) + 4096 * 2048
    gated = 2048 * 256 * (2 * 16 + 16 + 2 * 2)
    latent = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    return [
        row("gpt-oss-20b", "gpt-oss-20b", "mxfp4", 24, 32, 4, 2880, 2880, 24 * attention(2880, 64, 8, 64), 201088, 24 * 2048),
        row("gpt-oss-120b", "gpt-oss-120b", "mxfp4", 36, 128, 4, 2880, 2880, 36 * attention(2880, 64, 8, 64), 201088,
            36 * 2048),
        row("Qwen3-30B-A3B", "qwen3-30b", "w4a16_g128", 48, 128, 8, 2048, 768, 48 * attention(2048, 32, 4, 128), 151936,
            48 * 2048),
        row("Qwen3.6-35B-A3B", "qwen3.6-35b", "w4a16_g128", 40, 256, 8, 2048, 512,
            30 * delta + 10 * gated + 40 * 3 * 2048 * 512, 248320, 10 * 2048),
        row("GLM-4.5-Air", "glm-4.5-air", "w4a16_g128", 45, 128, 8, 4096, 1408,
            46 * attention(4096, 96, 8, 128) + 3 * 4096 * (10944 + 45 * 1408), 151552, 46 * 4096),
        row("Qwen3-235B-A22B", "qwen3-235b", "w4a16_g128", 94, 128, 8, 4096, 1536, 94 * attention(4096, 64, 4, 128), 151936,
            94 * 2048),
        row("DeepSeek-V3", "deepseek-v3", "w4a16_g128", 58, 256, 8, 7168, 2048,
            61 * latent + 3 * 3 * 7168 * 18432 + 58 * 3 * 7168 * 2048, 129280, 61 * 1152),
    ]


def sizes(m):
    """Bytes: all experts, a token's, what else is held, what of it a token reads, keys and values."""
    expert = m["expert"] * EXPERT_BITS[m["scheme"]] / 8
    dense = DENSE_BITS[m["scheme"]] / 8
    return {"experts": expert * m["layers"] * m["experts"], "token": expert * m["layers"] * m["top_k"],
            "dense": m["dense"] * dense + m["table"] * dense, "dense_token": m["dense"] * dense, "kv": m["kv"] * CONTEXT}


def room(m, card):
    """Share of the experts that the card holds; None: what is no expert does not fit."""
    s = sizes(m)
    free = (card[1] - RESERVE) * GB - s["dense"] - s["kv"]
    return None if free <= 0 else min(1.0, free / s["experts"])


def least_memory(m, share):
    """GB of RAM that hold all experts, in 85 % of it; those on the card are there, too, unless it holds all."""
    if share is not None and share >= 1:
        return MEMORY_SIZES[0]
    need = sizes(m)["experts"] / 0.85 / GB
    return next((size for size in MEMORY_SIZES if size >= need), None)


def stock(m, card, share, memory):
    """Tokens a second of --n-cpu-moe: whole layers' experts on the card, the others' by the CPU."""
    s = sizes(m)
    layers = int(share * m["layers"])
    rest = 1 - layers / m["layers"]
    device = DEVICE_SHARE * card[2] * GB
    seconds = m["layers"] * LAYER_S + (m["layers"] - layers) * CPU_LAYER_S
    seconds += (s["dense_token"] + s["token"] * (1 - rest)) / device + s["token"] * rest / (MEMORY_SHARE * memory * GB)
    return 1 / seconds


def plug_in(m, card, share, memory):
    """Tokens a second with all experts in pinned RAM. Link and CPU share what is missing, and read no faster together than
    the memory gives. Every expert is as likely as another, or routing is as skewed as the bundled model's, of which a cache
    of the share r misses (1 - r)^4."""
    s = sizes(m)
    device = DEVICE_SHARE * card[2] * GB
    rates = []
    for miss in (1 - share, (1 - share) ** 4):
        own = s["dense_token"] + s["token"] * (1 - miss)
        missing = s["token"] * miss / (MEMORY_SHARE * memory * GB)
        rates.append(1 / (m["layers"] * (LAYER_S + SHARED_S) + own / device + missing))
    return rates


def bytes_table():
    lines = ["| model | file | experts, GB | beside them, GB | a token reads, GB | least RAM, GB, 12 GB card |", "|---|---|--:|--:|--:|--:|"]
    for m in models():
        s = sizes(m)
        least = least_memory(m, room(m, CARDS[1]))
        form = "MXFP4" if m["scheme"] == "mxfp4" else "Q4_K_M"
        lines.append(f"| {m['name']} | {form} | {s['experts'] / GB:.1f} | {(s['dense'] + s['kv']) / GB:.1f} | "
                     f"{(s['token'] + s['dense_token']) / GB:.2f} | {least or 'over 256'} |")
    return "\n".join(lines)


def share_table():
    lines = ["| % | " + " | ".join(c[0] for c in CARDS) + " |", "|---|" + "--:|" * len(CARDS)]
    for m in models():
        cells = []
        for card in CARDS:
            share = room(m, card)
            cells.append("no" if share is None else "all" if share >= 1 else f"{100 * share:.0f}")
        lines.append(f"| {m['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def speed_table():
    def text(value):
        return f"{value:.2g}" if value < 10 else f"{value:.0f}"
    def span(rates):
        low, high = map(text, rates)
        return low if low == high else f"{low}-{high}"
    columns = [f"{who}, {', '.join(name for name, _ in MEMORIES)}" for who in ("plug-in", "stock")]
    lines = ["| model | card | " + " | ".join(columns) + " |", "|---|---|--:|--:|"]
    for m in models():
        for card in CARDS:
            share = room(m, card)
            if share is None or share >= 1 or share < LEAST_SHARE:
                continue
            ours = ", ".join(span(plug_in(m, card, share, memory[1])) for memory in MEMORIES)
            beside = ", ".join(text(stock(m, card, share, memory[1])) for memory in MEMORIES)
            lines.append(f"| {m['name']} | {card[0]} | {ours} | {beside} |")
    return "\n".join(lines)
