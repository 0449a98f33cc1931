#!/usr/bin/env python3
"""Lets gcc link for an older glibc than this system's: makes a folder for its option -L.

  link_folder.py FOLDER VERSION      e.g. link_folder.py build/glibc 2.28

The folder has libc, libm, libpthread, libdl and librt as VERSION has them, without code: of each symbol
the newest version that is not newer, in the library where it was until 2.34. What is newer is an
undefined reference, unless newer.c has a substitute, which goes inside.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# glibc 2.34 moved these into libc, each in a new version beside the former one.
MOVED = {"libpthread.so.0": r"_*pthread_|sem_|thrd_|mtx_|cnd_|tss_|call_once$",
         "libdl.so.2": r"dl",
         "librt.so.1": r"aio_|lio_|mq_|shm_|timer_"}
SYMBOL = re.compile(r" *\d+: (?P<address>\w+) +(?P<size>\w+) (?P<kind>FUNC|IFUNC|OBJECT) +(?P<binding>\w+) "
                    r"+DEFAULT +\w+ (?P<name>[^@ ]+)(?P<at>@@?)GLIBC_(?P<version>[0-9.]+)$")


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def system_file(name):
    path = output("gcc", "-print-file-name=" + name).strip()
    if not os.path.isabs(path):
        sys.exit(f"link_folder: gcc does not find {name} (Debian: libc6-dev)")
    return path


def key(version):
    return [int(number) for number in version.split(".")]


def symbols(library):
    """{name: {version: match of SYMBOL}} of what the system's library lets a program link with."""
    found = collections.defaultdict(dict)
    for line in output("readelf", "--wide", "--dyn-syms", system_file(library)).splitlines():
        if match := SYMBOL.match(line):
            found[match["name"]][match["version"]] = match
    return {name: versions for name, versions in found.items()
            if any(match["at"] == "@@" for match in versions.values())}


def former_home(name):
    return next((library for library, names in MOVED.items() if re.match(names, name)), None)


def libraries(wanted):
    """{library: matches of SYMBOL} as a glibc of that version has them."""
    result = {library: [] for library in ("libc.so.6", "libm.so.6", *MOVED)}
    for library in ("libc.so.6", "libm.so.6"):
        for name, versions in symbols(library).items():
            old = [version for version in versions if key(version) <= key(wanted)]
            moved = library == "libc.so.6" and len(old) < len(versions) and name != "__libc_start_main"
            home = former_home(name) if moved else library
            if old and home:  # what moved from elsewhere is left out
                result[home].append(versions[max(old, key=key)])
    return result


def assembly(matches):
    """Functions without code; data of the right size, at one address what is at one in the system's."""
    places = collections.defaultdict(list)
    for number, match in enumerate(matches):
        data = match["kind"] == "OBJECT"
        places[match["address"] if data else number].append((f"symbol_{number}", data, match))
    lines = []
    for place in places.values():
        for label, data, match in place:
            lines += [f".{'weak' if match['binding'] == 'WEAK' else 'globl'} {label}",
                      f".type {label}, {'@object' if data else '@function'}",
                      f".size {label}, {int(match['size'], 0)}",
                      f".symver {label}, {match['name']}@@GLIBC_{match['version']}, remove",
                      ".data" if data else ".text"]
        lines += [".balign 32", *(f"{label}:" for label, _, _ in place),
                  f".zero {max(int(match['size'], 0) if data else 1 for _, data, match in place)}"]
    return "\n".join(lines) + '\n.section .note.GNU-stack,"",@progbits\n'


def make_library(path, soname, matches):
    versions = sorted({match["version"] for match in matches}, key=key)
    nodes = "".join(f"GLIBC_{version} {{ }} {before};\n" for version, before in
                    zip(versions, ["", *(f"GLIBC_{version}" for version in versions)]))
    with tempfile.TemporaryDirectory() as folder:
        source, script = os.path.join(folder, "library.s"), os.path.join(folder, "library.map")
        for name, text in ((source, assembly(matches)), (script, nodes)):
            with open(name, "w", encoding="ascii") as file:
                file.write(text)
        output("gcc", "-shared", "-nostdlib", source, "-o", path, f"-Wl,-soname,{soname}",
               f"-Wl,--version-script,{script}")


def make_substitutes(path):
    with tempfile.TemporaryDirectory() as folder:
        objects = [os.path.join(folder, name + ".o") for name in ("newer", "start")]
        for each in objects:
            source = os.path.join(HERE, os.path.basename(each)[:-1] + "c")
            output("gcc", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-c", source, "-o", each)
        if os.path.exists(path):
            os.remove(path)
        output("ar", "rcsD", path, *objects)


def main():
    if len(sys.argv) != 3 or not re.fullmatch(r"2\.\d+", sys.argv[2]):
        sys.exit(__doc__)
    folder, wanted = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    for soname, matches in libraries(wanted).items():
        name = soname if soname == "libc.so.6" else soname[:soname.index(".so") + 3]
        make_library(os.path.join(folder, name), soname, matches)
    make_substitutes(os.path.join(folder, "libnewer.a"))
    with open(os.path.join(folder, "libc.so"), "w", encoding="utf-8") as file:
        file.write("GROUP ( -lnewer AS_NEEDED ( -lpthread -ldl -lrt ) -l:libc.so.6 "
                   f"{system_file('libc_nonshared.a')} AS_NEEDED ( {system_file('ld-linux-x86-64.so.2')} ) )\n")


main()
