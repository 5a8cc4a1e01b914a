#!/bin/sh
# A custom plugin of node-problem-detector: asks the node's agent for the verdicts on its GPUs.
# Prints one line. Exit status: 0 every GPU is ok, 1 one is not, 2 nobody knows, as node-problem-detector wants it.
# Arguments are those of `gpumeter health`: --fail-on failed, or --url https://... --web.ca-file ... instead of the socket.
# GPUMETER names the program, if it is not in PATH.

[ $# -gt 0 ] || set -- --socket
report=$("${GPUMETER:-gpumeter}" health "$@" 2>&1)
case $? in
0)
    echo "all GPUs are ok"
    ;;
1)
    # The first reason of the worst state, without what ends it: "GPU 3: failed, reset_gpu: ...".
    printf '%s\n' "$report" | awk '
        /^GPU / { gpu = $1 " " $2 }
        /^  (failed|degraded), / {
            state = $1
            sub(/^  /, "")
            sub(/; ends with .*/, "")
            if (!(state in first)) first[state] = gpu ": " $0
        }
        END {
            if ("failed," in first) print first["failed,"]
            else if ("degraded," in first) print first["degraded,"]
            else print "a GPU is not ok"
        }'
    exit 1
    ;;
*)
    printf '%s\n' "$report" | tail -n 1
    exit 2
    ;;
esac
