"""Where a generated table's figures come from: the commits and machines of the data behind it.

pages.py puts the caption below every table. A table whose figures mix commits or machines must say in its own
words which cells are of which, and one without a commit why: else it is refused.
"""
import dataclasses
import json
import typing

import report


class Refused(Exception):
    pass


@dataclasses.dataclass
class Table:
    make: typing.Callable[[], str]
    sources: tuple = ()   # (name of a data file, keys within it...), or what returns commits and machines
    word: str = ""        # what mixes, or why there is no commit
    shown: bool = True    # the caption; False where every row names its own


def commits_and_machines(node):
    """({commit}, {machine}) that a JSON value names, at any depth."""
    commits, machines = set(), set()
    if isinstance(node, list):
        parts = node
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("commit", "recorded_commit") and isinstance(value, str) and value:
                commits.add(value)
            if key == "device" and isinstance(value, str):
                machines.add(value)
            if key == "commits":
                commits |= leaves(value)
        parts = [value for key, value in node.items() if key != "commits"]
    else:
        return commits, machines
    for part in parts:
        more = commits_and_machines(part)
        commits |= more[0]
        machines |= more[1]
    return commits, machines


def leaves(node):
    if isinstance(node, dict):
        return set().union(*map(leaves, node.values()))
    return {node}


def load(source):
    name, *keys = (source,) if isinstance(source, str) else source
    node = json.loads((report.DATA / f"{name}.json").read_text(encoding="utf-8"))
    for key in keys:
        node = node[key]
    return node


def origin(sources):
    """Of all sources together; a commit by its first eight digits."""
    commits, machines = set(), set()
    for source in sources:
        found = source() if callable(source) else commits_and_machines(load(source))
        commits |= {c.removesuffix("-dirty")[:8] + ("-dirty" if c.endswith("-dirty") else "") for c in found[0]}
        machines |= found[1]
    return sorted(commits), sorted(machines)


def caption(name, table):
    """The line below the table."""
    commits, machines = origin(table.sources)
    if not table.word:
        if not commits:
            raise Refused(f"{name}: no commit is kept with its data, and no word says why")
        if len(commits) > 1 or len(machines) > 1:
            raise Refused(f"{name}: mixes {', '.join(commits + machines)} without a word")
    parts = [f"{'Commits' if len(commits) > 1 else 'Commit'} {', '.join(commits)}"] if commits else []
    parts += [" and ".join(machines)] if machines else []
    return "*" + ". ".join(filter(None, (", ".join(parts), table.word))) + ".*"
