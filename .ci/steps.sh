# Sourced by .ci/run and .ci/all: runs steps, and measures the time and the processor time of each.

TIMEFORMAT='%R %U %S'
measured=$(mktemp -d)
names=()

# The file of a step's times, whose name may have a slash.
times_of() {
  printf '%s' "$measured/${1//\//_}"
}

# Runs a command and keeps its times.
measure() {
  local file
  file=$(times_of "$1")
  shift
  { time "$@" 2>&3; } 3>&2 2>"$file"
}

# Prints what a step took, and keeps its name for the table.
report_times() {
  names+=("$1")
  LC_ALL=C awk -v name="$1" '{ printf "-- %s: %.0f s, %.0f s of processor time\n", name, $1, $2 + $3 }' "$(times_of "$1")"
}

# step NAME COMMAND...: runs a command alone.
step() {
  local status=0
  printf '\n== %s\n' "$1"
  measure "$@" || status=$?
  report_times "$1"
  return "$status"
}

# beside NAME COMMAND...: begins a command beside others; `join` prints what it said.
declare -A running=()
beside() {
  set -m # a process group of its own, by which all of it can be ended
  measure "$@" >"$(times_of "$1").log" 2>&1 &
  set +m
  running[$1]=$!
}

# join NAME...: waits for commands that were begun, prints their output, and fails if one of them did.
join() {
  local name failed=()
  for name; do
    wait "${running[$name]}" || failed+=("$name")
    unset "running[$name]"
    printf '\n== %s\n' "$name"
    cat "$(times_of "$name").log"
    report_times "$name"
  done
  if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    return 1
  fi
}

# Prints the table of all steps, and ends what still runs.
finish() {
  local status=$? name
  for name in "${!running[@]}"; do
    kill -- "-${running[$name]}" 2>/dev/null || true
  done
  printf '\n%-46s %8s %14s\n' step 'wall s' 'processor s'
  for name in "${names[@]}"; do
    LC_ALL=C awk -v name="$name" '{ printf "%-46s %8.0f %14.0f\n", name, $1, $2 + $3 }' "$(times_of "$name")"
  done
  printf '%-46s %8d\n' total "$SECONDS"
  rm -rf "$measured"
  exit "$status"
}
trap finish EXIT
