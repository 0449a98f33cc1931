#!/usr/bin/env python3
"""Checks that relative links, anchors and pictures of the documents lead somewhere, and that every page
is at most two clicks from README.md."""
import re
import sys

import pages


def anchors(path, known={}):
    if path not in known:
        found = {}
        for line in pages.lines_of(path):
            if line.kind == "heading":
                slug = pages.slug(line.text)
                found[slug] = found.get(slug, -1) + 1
        known[path] = set(found) | {f"{s}-{i}" for s, n in found.items() for i in range(1, n + 1)}
    return known[path]


def targets(path):
    """(line, target) of links and pictures outside code."""
    for line in pages.lines_of(path):
        if line.kind == "code":
            continue
        text = re.sub(r"`[^`]*`", "", line.text)
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            yield line.number, target[0] or target[1]


def main():
    broken, count = [], 0
    reached = {}
    everything = [*pages.pages(), pages.ROOT / "CHANGELOG.md"]
    for path in everything:
        for number, target in targets(path):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            name, _, anchor = target.partition("#")
            to = (path.parent / name).resolve() if name else path
            where = f"{path.relative_to(pages.ROOT)}:{number}: {target}"
            if not to.exists():
                broken.append(f"{where}: no such file")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                broken.append(f"{where}: no such heading; there are {', '.join(sorted(anchors(to)))}")
            reached.setdefault(path, set()).add(to)
    readme = pages.ROOT / "README.md"
    near = {readme} | reached[readme]
    near |= set().union(*(reached.get(page, set()) for page in near))
    broken += [f"{p.relative_to(pages.ROOT)}: more than two clicks from README.md" for p in everything if p not in near]
    print("\n".join(broken) or f"{count} links")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
