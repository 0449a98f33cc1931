#!/usr/bin/env python3
"""Checks names in the documents against the sources: files, data, tests, presets, tools and their flags,
environment variables, strategies with their seams and keys, functions, classes and fields.

Words that stand for something of the reader's (PACK, DIR...) are left alone.
"""
import json
import re
import sys

import pages

SOURCES = (".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".rs", ".go")
FOLDERS = ("lib", "kernels", "capi", "include", "examples", "tests", "docs", "cmake")
# Flags of other programs.
SEAMS = ("routing", "prefetch", "residency", "precision", "placement")
# Files of models, packs and installed trees.
FILES_OF_OTHERS = {"config.json", "generation_config.json", "hf_quant_config.json", "moert.json",
                   "moert.spdx.json", "tokenizer.json"}
FLAGS_OF_OTHERS = {"--check", "--component", "--copier", "--cpu-moe", "--cpu-offload-gb", "--fit",
                   "--mlock", "--n-cpu-moe", "--no-repack", "--no-warmup", "--sanitizers", "--set", "--slow",
                   "--target", "--test-dir", "--wrap"}
WORDS_OF_OTHERS = {"ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps", "ffn_gate_inp", "graph_compute",
                   "generate_until", "max_num_batched_tokens", "grouped_mm"}


def read(*folders):
    return "\n".join(p.read_text(encoding="utf-8", errors="replace") for f in folders
                     for p in sorted((pages.ROOT / f).rglob("*")) if p.suffix in SOURCES and p.is_file())


def strategies():
    """{name: keys} of the generated reference."""
    text = (pages.ROOT / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
    text = text.split("<!-- registry -->")[1].split("<!-- /registry -->")[0]
    found = {}
    for part in text.split("\n### `")[1:]:
        own, shared = re.findall(r"^\| `([\w-]+)` \|", part, re.M), re.findall(r"^- keys above: (.*)", part, re.M)
        found[part.split("`")[0]] = {*own, *re.findall(r"`([\w-]+)`", " ".join(shared))}
    return found


def code_of(line):
    return [line.text] if line.kind == "code" else re.findall(r"`([^`]+)`", line.text)


def expanded(name):
    """`a.{h,cc}` and `a.*` as paths to look for."""
    braces = re.match(r"(.*)\{([^}]*)\}(.*)", name)
    return [braces[1] + b + braces[3] for b in braces[2].split(",")] if braces else [name]


def file_errors(text):
    for name in re.findall(r"(?<![\w./-])((?:%s)/[\w./{},*-]+)" % "|".join(FOLDERS), text):
        for path in expanded(name.rstrip(".,")):
            path = path.rstrip("/")
            if "NAME" in path or "<" in path or "NNN" in path:
                continue
            if not (pages.ROOT / path).exists() and not list(pages.ROOT.glob(path)) and \
                    not list(pages.ROOT.glob(path + ".*")) and not (pages.ROOT / "include" / path).exists():
                yield f"{path}: no such file"


def data_errors(text):
    """Data of figures, by their names alone."""
    for name in re.findall(r"(?<![\w./-])([a-z][\w-]*\.json)\b", text if " " not in text else ""):
        if name not in FILES_OF_OTHERS and not (pages.ROOT / "docs" / "results" / "data" / name).exists():
            yield f"{name}: not in docs/results/data"


def test_errors(text, lists):
    for kind, name in re.findall(r"\b(unit|gpu|parity|concurrency|fault)\.([\w.]+)_test\b", text):
        path = f"tests/{kind}/{name.replace('.', '/')}_test.cc"
        if not (pages.ROOT / path).exists():
            yield f"{kind}.{name}_test: no such test"
    for kind, name in re.findall(r"(?<![\w./])(abi|docs|fault|hosts|install|python|slow|soak|gpu)\.([a-z]\w*)\b(?!_test|[*.(])", text):
        if not name.endswith("_test") and f"{kind}.{name}" not in lists and not list(
                (pages.ROOT / "tests" / kind).rglob(f"{name}_test.*")):
            yield f"{kind}.{name}: no such test"


def preset_errors(text, presets):
    for name in re.findall(r"--preset ([a-z]+)", text):
        if name not in presets:
            yield f"--preset {name}: no such preset"


def tool_errors(text, flags):
    for tool, rest in re.findall(r"(?<![\w/])(moert-(?:run|pack|bench|sim))\b([^`\n]*)", text):
        for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", rest):
            if flag not in flags and "--" + flag not in FLAGS_OF_OTHERS:
                yield f"{tool} --{flag}: no such flag"
    # A flag by itself, or the continuation of a command.
    for flag in re.findall(r"^\s*\[?--([a-z][\w-]*)", text):
        if flag not in flags and "--" + flag not in FLAGS_OF_OTHERS:
            yield f"--{flag}: no such flag of the tools"


def spec_errors(text, known):
    for spec in re.findall(r"[\w-]+:[\w]+=[\w,=.%/:-]+", text):
        name, _, rest = spec.partition(":")
        if name not in known:
            continue
        for key in re.findall(r"(?:^|,)([a-z_]+)=", rest):
            if key not in known[name]:
                yield f"{spec}: {name} has no key {key}"


def part_errors(text, known):
    """Seams of a strategy, and keys with a value: `fate.residency`, `wait=0`."""
    for name, seam in re.findall(r"(?<![\w./-])([a-z][a-z-]*)\.([a-z]+)\b", text):
        if name in known and seam not in SEAMS:
            yield f"{name}.{seam}: no such seam"


def key_errors(text, known, words):
    """A key and a value alone: of a strategy, or a name of the sources."""
    match = re.fullmatch(r"([a-z_]+)=[\w.\"/%-]*", text)
    if match and match[1] not in words and not any(match[1] in keys for keys in known.values()):
        yield f"{match[1]}: no strategy has such a key, and no source such a name"


def scheme_errors(text, schemes):
    """Names of schemes, or what several begin with."""
    for name in re.findall(r"(?<![\w./-])(w\d+a\d+(?:_[\w-]+)?)(?![\w.])", text):
        family = re.sub(r"_gN.*", "_g", name) if "_gN" in name else name + "_"
        if not any(s == name or s.startswith(family) for s in schemes):
            yield f"{name}: no such scheme"


def variable_errors():
    """Environment variables of the llama.cpp plug-in: read by it, and documented."""
    page = pages.ROOT / "docs" / "guide" / "llama-cpp.md"
    told = set(re.findall(r"^\| `(MOERT_\w+)` \|", page.read_text(encoding="utf-8"), re.M))
    options = (pages.ROOT / "examples" / "ggml_backend" / "options.cc").read_text(encoding="utf-8")
    asked = set(re.findall(r'(?:Value|ReadFlag)\("(MOERT_\w+)"', options))
    return [f"docs/guide/llama-cpp.md: {name}: {'not read' if name in told else 'not told'}" for name in sorted(told ^ asked)]


def member_errors(text, members):
    """`Class::Member` of a class of the sources: the files that declare it have such a member."""
    for owner, name in re.findall(r"\b([A-Z]\w+)::(\w+)", text):
        if owner in members and name not in members[owner]:
            yield f"{owner}::{name}: no such member"


def declared(code):
    """{class: words of the headers that declare it}."""
    found = {}
    for path in code:
        if path.suffix not in (".h", ".cuh", ".rs", ".go"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for owner in re.findall(r"\b(?:class|struct|trait|enum class|enum|impl)\s+([A-Z]\w+)(?=[^;]*?\{)|\btype ([A-Z]\w+) ", text):
            found.setdefault(owner[0] or owner[1], set()).update(re.findall(r"\w+", text))
    return found


def symbol_errors(text, symbols):
    for name in re.findall(r"\b(?:moert|MOERT)_\w+", text):
        if name not in symbols and not any(s.startswith(name) for s in symbols):
            yield f"{name}: no such name in the sources"


def word_errors(text, words):
    """Names in backquotes that look like the code's: snake_case, CamelCase, Class::Member."""
    for name in re.findall(r"(?:[A-Za-z]+::)*[A-Za-z]\w*", text if re.fullmatch(r"[\w:.()<>{}, *&]+", text) else ""):
        last = name.split("::")[-1]
        looks = "::" in name or re.fullmatch(r"[a-z]+(_[a-z0-9]+)+|[A-Z][a-z]+([A-Z][a-z0-9]+)+", last)
        if looks and last not in words:
            yield f"{name}: no such name in the sources"


# Where else the version of CMakeLists.txt's project() stands: files, and what is in front of it there.
VERSIONS = {"capi/include/moert/c/version.h": r'/\* "', "CHANGELOG.md": r"\A# Changelog\n[^#]*## ",
            "cmake/conan/conanfile.py": r'\bversion = "', "cmake/vcpkg/moert/vcpkg.json": r'"version": "',
            "examples/rust/*/Cargo.toml": r'^version = "', "examples/rust/Cargo.lock": r'^name = "moert.*"\nversion = "'}


def version_errors():
    want = re.search(r"project\(moert VERSION ([\d.]+)", (pages.ROOT / "CMakeLists.txt").read_text())[1]
    for pattern, before in VERSIONS.items():
        for path in pages.ROOT.glob(pattern):
            found = re.findall(before + r"(\d+\.\d+\.\d+)", path.read_text(encoding="utf-8"), re.M)
            if not found or set(found) != {want}:
                yield f"{path.relative_to(pages.ROOT)}: says {found or 'no version'}, CMakeLists.txt {want}"
    macros = re.findall(r"#define MOERT_VERSION_[A-Z]+ (\d+)",
                        (pages.ROOT / "capi/include/moert/c/version.h").read_text())
    if ".".join(macros) != want:
        yield f"version.h: MOERT_VERSION_* are {macros}, CMakeLists.txt says {want}"


def main():
    code = [p for f in ("lib", "kernels", "capi", "include", "examples", "tests", "cmake")
            for p in (pages.ROOT / f).rglob("*") if p.suffix in SOURCES or p.parent.name == "families"]
    words = WORDS_OF_OTHERS | {p.stem for p in code}
    for path in code:
        if pages.ROOT / "tests" / "docs" not in path.parents:
            words |= set(re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8", errors="replace")))
    flags = {"help", "version", "json", "force", "quiet", "warm"} | set(
        re.findall(r'\bAdd[A-Z]\w*\(\s*"([a-z][\w-]*)"', read("examples/cli")))
    presets = {p["name"] for p in json.loads((pages.ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    lists = "\n".join(p.read_text(encoding="utf-8") for f in ("tests", "capi", "examples")
                      for p in (pages.ROOT / f).rglob("CMakeLists.txt"))
    members = declared(code)
    schemes = set(re.findall(r"// (w\d\w+(?:-1\w*)?)", (pages.ROOT / "lib/quant/scheme.cc").read_text(encoding="utf-8")))
    symbols = set(re.findall(r"\b(?:moert|MOERT)_\w+", read("capi", "include", "lib", "examples", "cmake", "tests") +
                             (pages.ROOT / "CMakeLists.txt").read_text()))
    known = strategies()
    found = [*variable_errors(), *version_errors()]
    for path in pages.pages():
        page = str(path.relative_to(pages.ROOT))
        for line in pages.lines_of(path):
            for text in code_of(line):
                errors = [*file_errors(text), *test_errors(text, lists), *tool_errors(text, flags),
                          *spec_errors(text, known), *part_errors(text, known), *preset_errors(text, presets),
                          *symbol_errors(text, symbols)]
                if line.kind != "code":
                    errors += [*word_errors(text, words), *data_errors(text), *key_errors(text, known, words), *scheme_errors(text, schemes),
                               *member_errors(text, members)]
                found += [f"{page}:{line.number}: {e}" for e in errors]
    print("\n".join(found) or f"{len(known)} strategies, {len(flags)} flags and words of the tools, {len(symbols)} symbols")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
