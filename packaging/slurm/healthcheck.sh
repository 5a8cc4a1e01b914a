#!/bin/sh
# HealthCheckProgram of Slurm that drains a node with a failed GPU, and resumes it when no GPU is failed any more, provided that
# it drained the node itself. It knows that by the reason, which begins with "gpumeter:"; a node that somebody else drained
# stays as it is. Where the health is unknown (no agent, no driver) it changes nothing. Always exits with 0.
#
# In slurm.conf:
#   HealthCheckProgram=/usr/share/gpumeter/slurm/healthcheck.sh
#   HealthCheckInterval=60
#   HealthCheckNodeState=ANY
#
# The agent is asked over its local socket, which only root and the agent's user can open: any user of the node could listen
# on its port while it is down. GPUMETER_SOCKET names another socket. Where the agent is in a container whose socket is not
# seen here, GPUMETER_URL=https://HOST:PORT asks over TLS, and GPUMETER_HEALTH_OPTIONS has further options of `gpumeter
# health`, split at blanks, such as "--web.ca-file /etc/gpumeter/ca.crt --web.user slurm --web.password-file
# /etc/gpumeter/slurm.password". Without TLS nobody knows who answers, so an http:// URL is refused.
PATH=${GPUMETER_HEALTHCHECK_PATH:-/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin:/usr/local/bin}
LC_ALL=C
export PATH LC_ALL

# Slurm ends a program that takes longer than 60 seconds, with all that it started.
limit=15

log() {
    logger -t gpumeter-healthcheck -- "$*" 2>/dev/null || printf '%s\n' "$*" >&2
}

# The failed GPUs with what to do, such as "GPU 3 reset_gpu, GPU 5 replace", on one line and short enough for a reason.
failures() {
    printf '%s\n' "$1" |
        sed -n 's/^GPU \([0-9]*\) .*: failed, action \([a-z_]*\)$/GPU \1 \2/p; s/^GPU \([0-9]*\) .*: failed$/GPU \1/p' |
        head -n 16 | tr '\n' ',' | sed 's/,$//; s/,/, /g'
}

# What Slurm says of the node, on one line.
node_line() {
    timeout $limit scontrol show node -o "$node"
}

is_drained() {
    case $1 in
        *" State="*DRAIN*) return 0 ;;
    esac
    return 1
}

drain() {
    line=$(node_line) || { log "scontrol does not know node $node"; return; }
    if is_drained "$line"; then
        return
    fi
    if timeout $limit scontrol update "NodeName=$node" State=DRAIN "Reason=gpumeter: $(failures "$1")"; then
        log "drained $node: $(failures "$1")"
    else
        log "scontrol did not drain $node"
    fi
}

resume() {
    line=$(node_line) || { log "scontrol does not know node $node"; return; }
    is_drained "$line" || return
    case $line in
        *" Reason=gpumeter: "*) ;;
        *) return ;;
    esac
    if timeout $limit scontrol update "NodeName=$node" State=RESUME; then
        log "resumed $node: no GPU is failed any more"
    else
        log "scontrol did not resume $node"
    fi
}

node=${SLURMD_NODENAME-}
if [ -z "$node" ]; then
    node=$(uname -n)
    node=${node%%.*}
fi
case ${GPUMETER_URL-} in
    '') set -- --socket ${GPUMETER_SOCKET:+"$GPUMETER_SOCKET"} ;;
    https://*) set -- --url "$GPUMETER_URL" ;;
    *)
        log "the health of $node is not asked for, and nothing is changed: GPUMETER_URL=$GPUMETER_URL is without TLS, so" \
            "anybody may answer there; unset it, or use https://"
        exit 0
        ;;
esac
problem=$(mktemp) || problem=/dev/null
set -f
report=$(timeout $limit gpumeter health --fail-on failed "$@" ${GPUMETER_HEALTH_OPTIONS-} 2>"$problem")
status=$?
set +f
said=$(tail -n 3 "$problem" | tr '\n' ' ')
[ "$problem" = /dev/null ] || rm -f "$problem"
case $status in
    0) resume ;;
    1) drain "$report" ;;
    *) log "the health of $node is unknown, and nothing is changed: gpumeter health ended with $status: $said" ;;
esac
exit 0
