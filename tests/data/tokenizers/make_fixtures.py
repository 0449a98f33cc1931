#!/usr/bin/env python3
"""Writes small tokenizers of the kinds that published MoE models use, with what the reference library makes of some texts.

    pip install tokenizers==0.22.2 && python3 make_fixtures.py

NAME.json: a tokenizer.json. cases.json: by NAME, text -> ids without and with the tokens that the
post-processor adds, and the text that the ids decode to.
"""
import json
import os

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "..", "eval", "wikitext2.txt")
TEXTS = [
    "Hello world", " leading space", "  two spaces  inside and after ", "", " ", "a",
    "line\nbreaks\n\n  and\ttabs", "caf\u00e9 na\u00efve \u4e2d\u6587 \U0001f600 \u2581mark", "1234567 + 89",
    "<s>special at the start", "text </s> in the middle</s>", "</s></s>", "<unk>", "\u2581", "a\u2581b",
    "The history of the city , founded in the 12th century , is long .",
]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def trained():
    """A vocabulary in SentencePiece's order: special tokens, bytes, the rest."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special + BYTES, show_progress=False,
                                  limit_alphabet=80)
    with open(CORPUS, encoding="utf-8") as f:
        tokenizer.train_from_iterator(f.read().splitlines(), trainer)
    state = json.loads(tokenizer.to_str())
    model = models.BPE(vocab=state["model"]["vocab"],
                       merges=[tuple(m) for m in state["model"]["merges"]],
                       unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    return tokenizer


def build():
    llama = trained()  # Llama 2, Mixtral 8x7B, Phi-3.5: spaces in the normalizer
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                             normalizers.Replace(" ", "\u2581")])
    first = trained()  # newer conversions of the same models
    first.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    split = trained()
    split.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    return {"llama": llama, "metaspace_first": first, "metaspace_split": split}


if __name__ == "__main__":
    cases = {}
    for name, tokenizer in build().items():
        tokenizer.save(os.path.join(HERE, name + ".json"), pretty=False)
        cases[name] = []
        for text in TEXTS:
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            cases[name].append({"text": text, "ids": plain, "prompt": tokenizer.encode(text).ids,
                                "decoded": tokenizer.decode(plain, skip_special_tokens=False)})
    with open(os.path.join(HERE, "cases.json"), "w") as f:
        json.dump(cases, f, indent=1)
        f.write("\n")
