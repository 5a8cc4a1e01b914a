#!/bin/sh
# Epilog of Slurm that ends the record which prolog.sh wrote. Always exits with 0: an epilog that fails drains the node.
PATH=/usr/bin:/bin
LC_ALL=C
export PATH LC_ALL

directory=${GPUMETER_DIRECTORY:-/run/gpumeter}

case ${SLURM_JOB_ID-} in
    '' | *[!0-9]*) exit 0 ;;
esac
name=$SLURM_JOB_ID
case ${SLURMD_NODENAME-} in
    '' | *[!A-Za-z0-9._-]*) ;;
    *) name=$name.$SLURMD_NODENAME ;;
esac
rm -f "$directory-slurm/$name"
exit 0
