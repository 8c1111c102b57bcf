# Work that a script does beside other work; sourced, never run.
#
# Most steps leave one of two cores idle for a while, so two lanes together end sooner. A lane
# prints nothing until it is joined.

lanes=$target/test
mkdir -p "$lanes"
rm -f "$lanes"/*
declare -A lane_ids=()
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# Starts a function in the background.
start_lane() {
    "$1" >"$lanes/$1.log" 2>&1 &
    lane_ids[$1]=$!
}

# Waits for a lane and prints its output. A failure in it ends the script.
join_lane() {
    local status=0
    wait "${lane_ids[$1]}" || status=$?
    cat "$lanes/$1.log"
    [ "$status" = 0 ] || die "$1 failed"
}

# Notes a check that is not run; scripts/test lists them at the end.
skip() { printf '   %s\n' "$*" >>"$lanes/skipped"; }
