#!/usr/bin/env bash
# Runs a command in a control group of its own, which holds at most so much memory, cached files included:
#   in_group.sh BYTES COMMAND ARGUMENT...
# Exits with 77 where no group can be made.
set -euo pipefail
bytes=$1
shift
own() { sed -n "s/^$1//p" /proc/self/cgroup; }
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
  parent=/sys/fs/cgroup/memory$(own '[0-9]*:memory:') limit=memory.limit_in_bytes
else
  parent=/sys/fs/cgroup$(own '0::') limit=memory.max
fi
group=$parent/moert-test-$$
mkdir "$group" 2>/dev/null || exit 77
trap 'rmdir "$group"' EXIT
{ echo "$bytes" >"$group/$limit"; } 2>/dev/null || exit 77
status=0
bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' - "$group" "$@" || status=$?
exit "$status"
