#!/bin/sh
# Prolog of Slurm that records for gpumeter which job was given which GPUs. Runs as root on each node of a job.
# It needs PrologFlags=Alloc in slurm.conf, calls neither the driver nor a command of Slurm, and always exits with 0:
# a prolog that fails drains the node.
#
# It writes one file of key=value lines per job. A value with control characters is left out.
PATH=/usr/bin:/bin
LC_ALL=C
export PATH LC_ALL

directory=${GPUMETER_DIRECTORY:-/run/gpumeter}
records=$directory/slurm

line() {
    case $2 in
        '' | *[[:cntrl:]]*) ;;
        *) printf '%s=%s\n' "$1" "$2" || complete= ;;
    esac
}

# The UUIDs of the job's GPUs, and the minor numbers of those that the agent's map does not have. Slurm tells MIG instances by
# UUID; their numbers are no minor numbers of GPUs.
find_gpus() {
    uuids=
    unmapped=
    minors=${SLURM_JOB_GPUS-}
    IFS=,
    set -f
    for device in ${CUDA_VISIBLE_DEVICES-}; do
        case $device in
            MIG-*) uuids=${uuids:+$uuids,}$device minors= ;;
        esac
    done
    for minor in $minors; do
        found=
        if [ -r "$directory/gpus" ]; then
            while IFS=' ' read -r known uuid; do
                if [ "$known" = "$minor" ]; then
                    found=$uuid
                fi
            done <"$directory/gpus"
        fi
        if [ -n "$found" ]; then
            uuids=${uuids:+$uuids,}$found
        else
            unmapped=${unmapped:+$unmapped,}$minor
        fi
    done
    set +f
    unset IFS
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
    if [ -r "$gres" ] && ! cmp -s "$gres" "$directory/gres.conf"; then
        cp "$gres" "$directory/.gres.conf.$$" && mv -f "$directory/.gres.conf.$$" "$directory/gres.conf"
    fi
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
    mkdir -p "$records" && chmod 0755 "$records" || return
    copy_gres
    temporary=$records/.$name.$$
    complete=yes
    record >"$temporary" || complete=
    if [ -n "$complete" ]; then
        mv -f "$temporary" "$records/$name"
    else
        rm -f "$temporary"
    fi
}

main
exit 0
