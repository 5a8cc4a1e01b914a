#!/bin/sh
# Stores what a job held, used and cost, and notes on what to change, in its AdminComment, where sacct shows it: an example for sites with slurmdbd.
#
# In slurm.conf it is an Epilog and the EpilogSlurmctld:
#   Epilog=/etc/slurm/epilog.d/*
#   EpilogSlurmctld=/usr/share/gpumeter/slurm/summary.sh
# On a node it writes the node's summary to a directory that nodes and controller share, three minutes after the job, when
# its account is complete. On the controller it adds up the summaries of the nodes a minute later and stores the sum.
# Both let go of Slurm at once, and always exit with 0. `summary.sh show JOB` prints what is stored.
#
# GPUMETER_SUMMARIES names the directory, GPUMETER_SUMMARY_DELAY the seconds that a node waits, and GPUMETER_JOB_OPTIONS
# has further options of `gpumeter job`, split at blanks.
PATH=${GPUMETER_SUMMARY_PATH:-/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin:/usr/local/bin}
LC_ALL=C
export PATH LC_ALL

directory=${GPUMETER_SUMMARIES:-/shared/gpumeter-jobs}
delay=${GPUMETER_SUMMARY_DELAY:-180}
mark=gpumeter1:
# A column of slurmdbd holds 65535 bytes.
longest=65000

log() {
    logger -t gpumeter-summary -- "$*" 2>/dev/null || printf '%s\n' "$*" >&2
}

# Runs a command of this script later. Slurm kills the process group of an epilog at its end, and waits until its output
# is closed. So this waits for the end of a pipe, which the command closes when it has left that group.
later() {
    seconds=$1
    shift
    : "$(setsid sh -c 'exec >/dev/null; sleep "$1"; shift; exec sh "$@"' later "$seconds" "$0" "$@" </dev/null 2>/dev/null &)"
}

# The last line that a command wrote to a file.
last_line() {
    tail -n 1 "$1"
}

# Writes the summary of this node.
write_summary() {
    umask 027
    new=$(mktemp "$directory/.summary.XXXXXX") || { log "job $1: $directory cannot be written"; return; }
    set -f
    timeout 60 gpumeter job "$1" --raw --json --brief ${GPUMETER_JOB_OPTIONS-} >"$new" 2>"$new.problem"
    status=$?
    set +f
    case $status in
        0) chmod 0640 "$new" && mv -f "$new" "$directory/$1.$2.json" ;;
        1) ;; # It had no GPU here.
        *) log "job $1: there is no summary of $2: $(last_line "$new.problem")" ;;
    esac
    rm -f "$new" "$new.problem"
}

# What is stored of a job; fails if that is not known.
comment() {
    stored=$(timeout 60 sacct --noheader --parsable2 --allocations --jobs "$1" --format AdminComment) || return
    printf '%s\n' "$stored" | tail -n 1
}

# Adds up the summaries of the nodes and stores the sum.
store_sum() {
    set -- "$1" "$directory/$1".*.json
    [ -e "$2" ] || return
    job=$1
    shift
    text=$(comment "$job") || { log "job $job: sacct does not tell its AdminComment"; return; }
    case $text in
        '' | "$mark"*) ;;
        *) log "job $job: its AdminComment is not of gpumeter and stays"; return ;;
    esac
    sum=$(timeout 60 gpumeter job --sum "$@" --json --brief) || { log "job $job: its nodes do not add up"; return; }
    # sacctmgr before 23.02 changes all letters to lower case.
    text=$mark$(printf '%s\n' "$sum" | gzip -9 -n | base32 -w 0 | tr A-Z a-z)
    if [ ${#text} -gt $longest ]; then
        log "job $job: its summary has ${#text} bytes, more than an AdminComment holds"
        return
    fi
    if timeout 60 sacctmgr --immediate --quiet modify job where "jobid=$job" set "AdminComment=$text" >/dev/null; then
        rm -f "$@"
    else
        log "job $job: sacctmgr did not store its summary"
    fi
}

# Prints what is stored of a job.
show() {
    text=$(comment "$1") || return
    case $text in
        "$mark"*) printf '%s' "${text#"$mark"}" | tr a-z A-Z | base32 -d | gzip -d | gpumeter job --sum /dev/stdin ;;
        *) printf '%s\n' "job $1 has no summary in its AdminComment" >&2; return 1 ;;
    esac
}

case ${1-} in
    show) show "${2:?give the id of a job}"; exit ;;
    write) write_summary "$2" "$3"; exit 0 ;;
    store) store_sum "$2"; exit 0 ;;
esac
case ${SLURM_JOB_ID-} in
    '' | *[!0-9]*) exit 0 ;;
esac
node=${SLURMD_NODENAME-}
case ${SLURM_SCRIPT_CONTEXT-} in
    epilog_slurmctld) later $((delay + 60)) store "$SLURM_JOB_ID" ;;
    *)
        case $node in
            '' | *[!A-Za-z0-9._-]*) log "job $SLURM_JOB_ID: the node's name is not known" ;;
            *) later "$delay" write "$SLURM_JOB_ID" "$node" ;;
        esac
        ;;
esac
exit 0
