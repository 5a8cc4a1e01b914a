#!/bin/sh
# Prolog of Slurm that records for gpumeter which job was given which GPUs. Runs as root on each node of a job.
# It needs PrologFlags=Alloc in slurm.conf, calls neither the driver nor a command of Slurm, and always exits with 0:
# a prolog that fails drains the node.
#
# It writes one file of key=value lines per job, in a directory where nobody but root may write. A value with control
# characters is left out.
PATH=/usr/bin:/bin
LC_ALL=C
export PATH LC_ALL

directory=${GPUMETER_DIRECTORY:-/run/gpumeter}
records=$directory-slurm

log() {
    logger -t gpumeter-prolog -- "$1" 2>/dev/null || printf '%s\n' "$1" >&2
}

line() {
    case $2 in
        '' | *[[:cntrl:]]*) ;;
        *) printf '%s=%s\n' "$1" "$2" || complete= ;;
    esac
}

# Lines "MINOR UUID" of the agent's map. The agent's user can put anything there, so that it is read within bounds, and lines of
# any other form are left out.
read_map() {
    [ -f "$directory/gpus" ] || return
    timeout 0.5 head -c 16384 "$directory/gpus" 2>/dev/null | tr -d '\000' |
        grep -E '^[0-9]{1,4} GPU-[0-9A-Fa-f-]{1,64}$' 2>/dev/null
}

# Whether the text is the UUID of a GPU.
is_gpu_uuid() {
    case $1 in
        GPU-????????-????-????-????-????????????) ;;
        *) return 1 ;;
    esac
    case ${1#GPU-} in
        *[!0-9A-Fa-f-]*) return 1 ;;
    esac
}

sorted() {
    printf '%s\n' "$1" | tr ',' '\n' | sort
}

# The UUIDs of the job's GPUs, and the minor numbers of those that the agent's map does not have. Slurm tells MIG instances by
# UUID, and since 25.11 GPUs too: such UUIDs win over the map, since SLURM_JOB_GPUS are positions that need not be minor numbers.
find_gpus() {
    named=
    uuids=
    unmapped=
    minors=${SLURM_JOB_GPUS-}
    map=
    if [ -n "$minors" ]; then
        map=$(read_map)
    fi
    IFS=,
    set -f
    for device in ${CUDA_VISIBLE_DEVICES-}; do
        case $device in
            MIG-*) named=${named:+$named,}$device minors= ;;
            GPU-*) is_gpu_uuid "$device" && named=${named:+$named,}$device ;;
        esac
    done
    for minor in $minors; do
        found=
        while IFS=' ' read -r known uuid; do
            if [ "$known" = "$minor" ]; then
                found=$uuid
            fi
        done <<END
$map
END
        if [ -n "$found" ]; then
            uuids=${uuids:+$uuids,}$found
        else
            unmapped=${unmapped:+$unmapped,}$minor
        fi
    done
    set +f
    unset IFS
    if [ -n "$named" ]; then
        if [ -n "$uuids" ] && [ -z "$unmapped" ] && [ "$(sorted "$named")" != "$(sorted "$uuids")" ]; then
            log "job $SLURM_JOB_ID has $named as Slurm says, and $uuids by the positions ${SLURM_JOB_GPUS-}; the former is recorded"
        fi
        uuids=$named unmapped= minors=
    fi
}

# The name of the job, where Slurm passes it to a prolog. Its user chose it: what is not printable ASCII is replaced, and it is
# cut, so that no name makes the record invalid.
plain_name() {
    printf '%s' "${SLURM_JOB_NAME-}" | tr -c '[:print:]' '_' | head -c 128
}

record() {
    line job_id "$SLURM_JOB_ID"
    line sluid "${SLURM_JOB_SLUID-}"
    line array_job_id "${SLURM_ARRAY_JOB_ID-}"
    line array_task_id "${SLURM_ARRAY_TASK_ID-}"
    line het_job_id "${SLURM_HET_JOB_ID-}"
    line cluster "${SLURM_CLUSTER_NAME-}"
    line account "${SLURM_JOB_ACCOUNT-}"
    line user "${SLURM_JOB_USER-}"
    line uid "${SLURM_JOB_UID-}"
    line partition "${SLURM_JOB_PARTITION-}"
    line qos "${SLURM_JOB_QOS-}"
    line job_name "$(plain_name)"
    line node "${SLURMD_NODENAME-}"
    line configuration "${SLURM_CONF-}"
    line start "${SLURM_JOB_START_TIME-}"
    line mps_percentage "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-}"
    find_gpus
    line gpus "$uuids"
    line gpu_minors "$unmapped"
    line gpu_positions "$minors"
}

# SLURM_JOB_GPUS are positions in gres.conf, which are not always the numbers of the device files: the agent needs both. The
# file lies beside slurm.conf, also where slurmctld sent it.
copy_gres() {
    gres=${SLURM_CONF:-/etc/slurm/slurm.conf}
    gres=${gres%/*}/gres.conf
    if [ -r "$gres" ] && ! cmp -s "$gres" "$records/.gres.conf"; then
        copy=$(mktemp "$records/.gres.XXXXXX") || return
        cp "$gres" "$copy" && chmod 0644 "$copy" && mv -f "$copy" "$records/.gres.conf" || rm -f "$copy"
    fi
}

# Whether the directory of the records belongs to who runs this, root, and nobody else may write there.
may_hold_records() {
    [ -d "$records" ] && [ ! -L "$records" ] && [ -O "$records" ] || return 1
    case $(ls -ld "$records") in
        d????-??-*) ;;
        *) return 1 ;;
    esac
}

main() {
    case ${SLURM_JOB_ID-} in
        '' | *[!0-9]*) return ;;
    esac
    # Several slurmd on one machine have their names; a job may run on each of them.
    name=$SLURM_JOB_ID
    case ${SLURMD_NODENAME-} in
        '' | *[!A-Za-z0-9._-]*) ;;
        *) name=$name.$SLURMD_NODENAME ;;
    esac
    umask 022
    [ -d "$records" ] || mkdir -m 0755 "$records" 2>/dev/null
    if ! may_hold_records; then
        log "job $SLURM_JOB_ID is not recorded: $records has to be a directory of root with mode 0755"
        return
    fi
    copy_gres
    temporary=$(mktemp "$records/.record.XXXXXX") || return
    complete=yes
    record >"$temporary" || complete=
    if [ -n "$complete" ] && chmod 0644 "$temporary" && mv -f "$temporary" "$records/$name"; then
        return
    fi
    rm -f "$temporary"
}

main
exit 0
