"""A real Slurm on this machine: slurmctld, slurmd, slurmdbd and munged of the distribution, the project's prolog and epilog.

Jobs' processes are those that the simulated driver lists. What the agent bills is held against what Slurm itself says of
each job: when it began and ended, on which GPUs, of which account and user. GPUMETER_SMOKE=1: one job and its summary.
"""

import base64
import gzip
import json
import os
import pwd
import shutil
import socket
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import harness
from harness import GPUMETER, PATIENCE, ROOT, SMOKE, Failed, free_port, wait_for
from host_node import HostNode

# GPUs of the first node, each whole or in so many shards; the second node has one more. The third is a machine of its own, with one.
GPUS, SHARDS = 8, 4
DEMAND = 0.5
# Seconds for which a job works whose processes are looked at meanwhile.
WORK = 60
# Holdings begin and end when the agent reads them, once per second, and Slurm reports times in whole seconds.
TOLERANCE = 3

# As another program writes it.
FOREIGN = "JS1:H4sIAAAA"
# Seconds after a job: when its minute is accounted, and a while later.
NODES_DELAY, CONTROLLER_DELAY = 95, 135

PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "sbatch", "salloc", "srun", "scontrol", "squeue", "scancel", "sinfo",
            "sacct", "sacctmgr")

# The scripts of the project that Slurm runs around jobs, with the directories of the suite's agent.
HOOK = """#!/bin/sh
[ -e {folder}/lose-{name}-of-$SLURM_JOB_ID ] && exit 0
began=$(date +%s%N)
directory={folder}
[ "$SLURMD_NODENAME" != node3 ] || directory={folder}/third
GPUMETER_DIRECTORY=$directory/gpumeter sh {script}
status=$?
echo "{name} $SLURM_JOB_ID $status $began $(($(date +%s%N) - began))" >>{folder}/hooks.log
exit $status
"""

# The project's epilog of nodes and controller that stores summaries, for the jobs that are marked so.
SUMMARY = """#!/bin/sh
[ -e {folder}/sum-of-$SLURM_JOB_ID ] || exit 0
case ${{SLURMD_NODENAME-}} in
  '') delay=$(({controller} - 60)) url= ;; # It adds a minute.
  node3) delay={nodes} url={third} ;;
  *) delay={nodes} url={first} ;;
esac
# Slurm 22.05 tells nodes alone where slurm.conf is.
export SLURM_CONF={folder}/slurm.conf {environment}
export GPUMETER_SUMMARY_DELAY=$delay GPUMETER_JOB_OPTIONS="--url $url"
exec sh {script}
"""

# Where the system has no log.
LOGGER = """#!/bin/sh
shift 3
echo "$*" >>{folder}/summary.log
"""

# A process on each GPU of the job: the first in the batch step, the others in steps of their own.
JOB = """#!/bin/sh
set -- $(echo "$SLURM_JOB_GPUS" | tr , ' ')
first=$1
shift
for gpu; do
  srun --ntasks=1 --export=ALL {folder}/step "$gpu" {seconds} &
done
{folder}/step "$first" {seconds} &
wait
"""

# A heterogeneous job: a step over both components, with the environment that Slurm gives it.
HET_JOB = """#!/bin/sh
srun --het-group=0,1 --ntasks=1 --gpus-per-task=1 sleep 600
"""

STEP = """#!/bin/sh
# What a user may change, to be billed as somebody else.
export SLURM_JOB_ID=1000000 SLURM_JOB_ACCOUNT=others SLURM_JOB_USER=root SLURM_STEP_ID=77
exec {worker} "$(sed -n "$(($1 + 1))p" {folder}/pids)" "$2"
"""


def slurm(suite):
    # All slurmd of a machine have the same cgroups.
    harness.alone_with("slurmd")
    for program in PROGRAMS:
        if not shutil.which(program):
            raise Failed(f"{program} is not installed; .ci/tools slurm installs it")
    config = f"""node: {{name: machine, cluster: alpha}}
sampling: {{level: full}}
limits: {{birth_delay: 0s}}
attribution: {{slurm: {{records: {suite.folder}/gpumeter-slurm}}}}
prices: {{currency: EUR, rates: [{{gpu_hour: 3.6}}]}}
"""
    (suite.folder / "gpumeter").mkdir()
    node = HostNode(suite, [DEMAND] * (GPUS + 1), config)
    folder = suite.folder / "third"
    (folder / "gpumeter").mkdir(parents=True)
    third = HostNode(suite, [None], config.replace(str(suite.folder), str(folder)).replace("machine", "third"), folder)
    cluster = Cluster(suite, node, third)
    two_gpus = cluster.submit("games", "physics", WORK, "--gres=gpu:2", "--ntasks=2")
    if SMOKE:
        steps_are_named(suite, node, two_gpus)
        steps_are_billed(suite, node, cluster, two_gpus)
        cluster.summary("write", two_gpus, "node1")
        cluster.summary("store", two_gpus)
        summary_is_stored(suite, cluster, two_gpus, ["machine"], [])
    else:
        summed, foreign = jobs_with_summaries(node, cluster, third)
        whole(suite, node, cluster, two_gpus)
        summary_is_stored(suite, cluster, summed, ["machine", "third"], ["third GPU 0 had a fault (xid_driver)"])
        foreign_comment_stays(suite, cluster, foreign)
    hooks_succeed(suite)


def whole(suite, node, cluster, two_gpus):
    """Jobs side by side, each on GPUs of its own; those of shards when they have ended, since Slurm 22.05 gives a GPU whole
    although it has given shards of it."""
    array = cluster.submit("news", "chemistry", WORK, "--gres=gpu:1", "--array=3-4")
    requeued = cluster.submit("games", "physics", WORK, "--gres=gpu:1", "--requeue")
    suspended = cluster.submit("news", "chemistry", WORK - 1, "--gres=gpu:1")
    idle = cluster.allocate("news", "chemistry", "--gres=gpu:1")
    lost = cluster.submit("games", "physics", 15, "--gres=gpu:1")
    (suite.folder / f"lose-epilog-of-{lost}").touch()
    seen = set()

    def all_held():
        # The shortest may have ended before the last begins.
        seen.update(holder for holder in holdings(node) if "." not in holder)
        return len(seen) == 7

    wait_for("all holdings", 30, all_held, node.program)
    steps_are_named(suite, node, two_gpus)
    doctor(suite, node)
    requeue(suite, node, cluster, requeued)
    suspend(suite, node, cluster, suspended)
    array_job(suite, node, cluster, array)
    idle_allocation(suite, node, cluster, idle)
    lost_epilog(suite, node, cluster, lost)
    steps_are_billed(suite, node, cluster, two_gpus)
    ends_of_others(suite, node, cluster, requeued, suspended, array)
    parts_of_a_gpu(suite, node, cluster)
    heterogeneous_job(suite, node, cluster)
    preemption(suite, node, cluster)
    several_slurmd(suite, node, cluster)
    accounts_on_the_bill(suite, node)


def parts_of_a_gpu(suite, node, cluster):
    """Jobs of one and of two shards of four; only their processes' environment has the number."""
    jobs = [cluster.sleep("games", "physics", "--gres=shard:1"), cluster.sleep("news", "chemistry", "--gres=shard:2")]
    for job, expected in zip(jobs, (1 / SHARDS, 2 / SHARDS)):
        ratio = lambda: node.sample("gpu_holding_ratio", workload=holder_of(job))
        held = lambda: (ratio() or (None, 0))[1] == expected
        wait_for(f"the holding of job {job} of {expected}", 20, held, node.program)
    for job in jobs:
        cluster.run("scancel", str(job))


def heterogeneous_job(suite, node, cluster):
    """Each component is a job with a number, a record and GPUs of its own; the step holds one of each within that."""
    options = ("--nodelist=node1", "--gres=gpu:2"), ("--nodelist=node2", "--gres=gpu:1")
    leader = cluster.submit_heterogeneous("games", "physics", options)
    for job, gpus in ((leader, 2), (leader + 1, 1)):
        held = lambda: len(holdings(node).get(holder_of(job), [])) == gpus
        wait_for(f"{gpus} GPUs of component {job}", 30, held, node.program)
        labels = {"workload": holder_of(job), "slurm_het_job_id": leader, "slurm_account": "physics"}
        wait_for(f"a workload with {labels}", 20, lambda: node.sample("gpu_workload_info", **labels), node.program)
        step = f"{holder_of(job)}.0"
        wait_for(f"the GPU of {step}", 20, lambda: len(holdings(node).get(step, [])) == 1, node.program)
        granted = node.sample("gpu_holding_ratio", workload=step)[1] + total_ratio(node, holder_of(job))
        suite.expect(granted == gpus, f"component {job} and its step hold {granted} GPUs, not {gpus}")
    cluster.run("scancel", str(leader))
    for job in (leader, leader + 1):
        wait_for(f"the end of component {job}", 20, lambda: holder_of(job) not in holdings(node))


def preemption(suite, node, cluster):
    """A job of a preempting partition takes all GPUs: the former job is requeued and holds nothing until then."""
    preempted = cluster.sleep("games", "physics", f"--gres=gpu:{GPUS}", "--requeue")
    all_of = lambda job: len(holdings(node).get(holder_of(job), [])) == GPUS
    wait_for("all GPUs of the job that is to be preempted", 30, lambda: all_of(preempted), node.program)
    urgent = cluster.sleep("news", "chemistry", "--partition=urgent", f"--gres=gpu:{GPUS}")
    wait_for("all GPUs of the urgent job", 40, lambda: all_of(urgent), node.program)
    wait_for("the end of the preempted job's holding", 15, lambda: holder_of(preempted) not in holdings(node))
    suite.expect(cluster.job(preempted)["JobState"] == "PENDING", "the job was not put back into the queue")
    cluster.run("scancel", str(urgent))
    wait_for("the second run of the preempted job", 60, lambda: all_of(preempted), node.program)
    cluster.run("scancel", str(preempted))
    wait_for("the end of the second run", 20, lambda: holder_of(preempted) not in holdings(node))
    cluster.wait_for_end(preempted, "CANCELLED")
    runs = runs_by_hooks(suite, preempted)
    suite.expect(len(runs) == 2, f"the preempted job ran {runs}")
    expected = sum(end - begin for begin, end in runs) * GPUS
    held = total(lines_of(node, cluster, preempted), "held_ns")
    suite.expect(abs(held - expected) <= 2 * TOLERANCE * GPUS, f"the preempted job held {held} s in {runs}")
    gone = runs[0][1]
    came = runs_by_hooks(suite, urgent)[0][0]
    suite.expect(gone <= came, f"the urgent job began at {came}, before the other had ended at {gone}")


def several_slurmd(suite, node, cluster):
    """A job on both nodes of the machine has a record of each, and holds the GPUs of both."""
    job = cluster.sleep("games", "physics", "--partition=both", "--nodes=2", "--gres=gpu:1")
    held = lambda: len(holdings(node).get(holder_of(job), [])) == 2
    wait_for("the holdings of a job on two nodes", 20, held, node.program)
    suite.expect(str(GPUS) in holdings(node)[holder_of(job)], "the job does not hold the GPU of the second node")
    cluster.run("scancel", str(job))
    wait_for("the end of the job on two nodes", 15, lambda: holder_of(job) not in holdings(node))


def jobs_with_summaries(node, cluster, third):
    """A job on two machines, of which one has a fault, and one whose AdminComment another program writes. They end before the others
    begin, which need all GPUs; their epilogs go on."""
    summed = cluster.summed("--partition=apart", "--nodes=2", "--gres=gpu:1")
    foreign = cluster.summed("--gres=gpu:1")
    cluster.run("scontrol", "update", f"jobid={foreign}", f"AdminComment={FOREIGN}")
    wait_for("the job on two machines", 30, lambda: holder_of(summed) in holdings(third), third.program)
    (third.driver / "state").write_text(json.dumps({"xids": [{"gpu": 0, "xid": 119, "per_second": 1, "count": 1}]}))
    for job in (summed, foreign):
        cluster.wait_for_end(job)
        wait_for(f"the end of the holding of job {job}", 15, lambda: holder_of(job) not in holdings(node))
    return summed, foreign


def summary_is_stored(suite, cluster, job, nodes, notes):
    """The sum of the job's nodes is stored with the job, where it is found again."""
    stored = wait_for(f"the AdminComment of job {job}", CONTROLLER_DELAY + 30, lambda: cluster.comment(job))
    suite.expect(stored.startswith("gpumeter1:"), f"AdminComment of job {job}: {stored}")
    summary = json.loads(gzip.decompress(base64.b32decode(stored.removeprefix("gpumeter1:"), casefold=True)))
    begin, end = cluster.times(job)
    # Each has two GPUs.
    held, expected = int(summary["total"]["held_ns"]) / 1e9, 2 * (end - begin)
    told = [note["text"].split(" from ")[0] for note in summary["notes"]]
    suite.expect((summary["schema"], told) == (1, notes), f"schema and notes of the summary: {summary}")
    suite.expect(summary["nodes"] == nodes, f"the summary is of {summary['nodes']}")
    suite.expect(abs(held - expected) <= 2 * TOLERANCE, f"job {job} held {held} s by its summary, {expected} as Slurm says")
    shown = cluster.summary("show", job)
    for text in (f"Job {job} on {', '.join(nodes)}\n", *(f"\nnotes\n  {note}" for note in notes), "\ntotal "):
        suite.expect(text in shown.stdout, f"summary.sh show {job} prints no {text!r}: {shown}")
    left = [path.name for path in (suite.folder / "summaries").glob(f"{job}.*")]
    suite.expect(not left, f"summaries that are stored are left over: {left}")
    # As long as a column may be; none of another length is cut.
    long = "gpumeter1:" + "x" * 65_000
    cluster.run("sacctmgr", "--immediate", "--quiet", "modify", "job", "where", f"jobid={job}", "set", f"AdminComment={long}")
    suite.expect(cluster.comment(job) == long, "slurmdbd has cut an AdminComment")


def foreign_comment_stays(suite, cluster, job):
    log = suite.folder / "summary.log"
    told = f"job {job}: its AdminComment is not of gpumeter and stays"
    wait_for(f"a foreign AdminComment of job {job}", CONTROLLER_DELAY + 30, lambda: log.exists() and told in log.read_text())
    suite.expect(cluster.comment(job) == FOREIGN, f"job {job} has another AdminComment: {cluster.comment(job)}")
    shown = cluster.summary("show", job)
    suite.expect(shown.returncode == 1, f"summary.sh show {job} of a foreign AdminComment: {shown}")
    suite.expect(log.read_text().splitlines() == [told], f"the log of summary.sh: {log.read_text()}")


def doctor(suite, node):
    """The prolog reads the slurm.conf that the records name."""
    finding = lambda text: next((line for line in text.splitlines() if line[8:].startswith("jobs:")), text)
    command = ["doctor", "--config", node.config, "--nvml-library", node.library]
    told = finding(node.command(*command))
    suite.expect("PrologFlags=Alloc" not in told, f"doctor misses PrologFlags=Alloc, which is there: {told}")
    suite.expect("PrologFlags=Contain" in told, f"doctor does not miss PrologFlags=Contain: {told}")
    path = suite.folder / "slurm.conf"
    before = path.read_text()
    path.write_text(before.replace("PrologFlags=Alloc", ""))
    told = finding(node.command(*command))
    path.write_text(before)
    suite.expect("PrologFlags=Alloc" in told, f"doctor does not miss PrologFlags=Alloc: {told}")


def requeue(suite, node, cluster, job):
    """A job that is put back into the queue holds nothing until it runs again, under the same number."""
    cluster.run("scontrol", "requeue", str(job))
    wait_for("the holding of a requeued job to end", 15, lambda: holder_of(job) not in holdings(node))
    wait_for("the second run", 40, lambda: holder_of(job) in holdings(node), node.program)


def suspend(suite, node, cluster, job):
    """A suspended job still has its GPU and its holding."""
    cluster.run("scontrol", "suspend", str(job))
    wait_for("the suspension", 10, lambda: cluster.job(job)["JobState"] == "SUSPENDED")
    held = lambda: sum(value for name, value in node.samples("gpu_workload_held_seconds_total", workload=holder_of(job)))
    before = held()
    wait_for("the account of the suspended job", 60, lambda: held() >= before + 4, node.program)
    suite.expect(holder_of(job) in holdings(node), "a suspended job holds nothing")
    cluster.run("scontrol", "resume", str(job))


def array_job(suite, node, cluster, job):
    """Each task of an array is a job of its own; Slurm passes the array to its processes, not to the prolog."""
    for number, task in cluster.tasks(job):
        labels = {"workload": f"{holder_of(number)}", "slurm_array_job_id": job, "slurm_array_task_id": task,
                  "slurm_account": "chemistry", "slurm_user": "news"}
        wait_for(f"a workload with {labels}", 10, lambda: node.sample("gpu_workload_info", **labels), node.program)
        suite.checks += 1


def idle_allocation(suite, node, cluster, job):
    """An allocation without a step: PrologFlags=Alloc has the prolog run for it."""
    suite.expect(holder_of(job) in holdings(node), "an allocation without a step holds nothing")
    cluster.run("scancel", str(job))
    wait_for("the end of the allocation", 15, lambda: holder_of(job) not in holdings(node))
    cluster.wait_for_end(job, "CANCELLED")
    lines = lines_of(node, cluster, job)
    held_as_slurm_says(suite, lines, cluster, job, 1)
    suite.expect(total(lines, "within_ns") <= TOLERANCE, f"an allocation without a process used its GPU: {lines}")


def lost_epilog(suite, node, cluster, job):
    """Where the epilog did not run the record stays, and the holding ends with the job's cgroup."""
    cluster.wait_for_end(job)
    wait_for("the end of the holding without an epilog", 15, lambda: holder_of(job) not in holdings(node))
    suite.expect((suite.folder / f"gpumeter-slurm/{job}.node1").exists(), "the epilog that should be lost has run")
    suite.expect("does the epilog run?" in node.program.tail(100), "the agent does not tell of a lost epilog")
    held_as_slurm_says(suite, lines_of(node, cluster, job), cluster, job, 1)


def ends_of_others(suite, node, cluster, requeued, suspended, array):
    for job in (suspended, *(number for number, _ in cluster.tasks(array))):
        cluster.wait_for_end(job)
        held_as_slurm_says(suite, lines_of(node, cluster, job), cluster, job, 1)
    cluster.wait_for_end(requeued)
    runs = runs_by_hooks(suite, requeued)
    suite.expect(len(runs) == 2, f"the requeued job ran {runs}")
    expected = sum(end - begin for begin, end in runs)
    lines = lines_of(node, cluster, requeued)
    held = total(lines, "held_ns")
    suite.expect(abs(held - expected) <= 2 * TOLERANCE, f"the requeued job held {held} s in {runs}: {lines}")


def runs_by_hooks(suite, job):
    """Begin and end of each run of a job, as prolog and epilog saw them."""
    times = {"prolog": [], "epilog": []}
    for line in (suite.folder / "hooks.log").read_text().splitlines():
        name, number, _, began, _ = line.split()
        if int(number) == job:
            times[name].append(int(began) / 1e9)
    return list(zip(times["prolog"], times["epilog"]))


def accounts_on_the_bill(suite, node):
    """What `gpumeter bill` prints has a line for each account, and names no user of the host."""
    text = node.command("bill", "--url", node.url)
    for account in ("physics", "chemistry"):
        suite.expect(account in text, f"the bill has no line of {account}: {text}")


def holder_of(job):
    return f"slurm:alpha/{job}"


def holdings(node):
    """GPUs by holder."""
    held = {}
    for line in node.page().splitlines():
        if line.startswith("gpu_holding_ratio{"):
            label = lambda name: line.split(f'{name}="')[1].split('"')[0]
            held.setdefault(label("workload"), []).append(label("gpu"))
    return held


def total_ratio(node, holder):
    """What a holder holds of all GPUs together, beside what others hold within it."""
    lines = (line for line in node.page().splitlines() if line.startswith("gpu_holding_ratio{"))
    return sum(float(line.split()[-1]) for line in lines if f'workload="{holder}"' in line)


def steps_are_named(suite, node, job):
    """A process in the batch step and one in a step of its own, whatever their environment says."""
    holder = holder_of(job)
    for step in ("batch", "0"):
        info = wait_for(f"step {step}", 20, lambda: node.sample("gpu_workload_info", workload=f"{holder}.{step}"))[0]
        for label in ('kind="slurm"', 'tenant="physics"', f'slurm_job_id="{job}"', f'slurm_step_id="{step}"',
                      'slurm_cluster="alpha"', 'slurm_account="physics"', 'slurm_user="games"',
                      'slurm_partition="gpu"'):
            suite.expect(label in info, f"{label} is not in {info}")


def steps_are_billed(suite, node, cluster, job):
    """What both steps used is within their job's holding of two GPUs, one line each."""
    holder = holder_of(job)
    cluster.wait_for_end(job)
    lines = lines_of(node, cluster, job)
    begin, end = cluster.times(job)
    # The simulated driver lists a process that has ended to the end of its job, so a step that begins late makes the other longer.
    least, most = DEMAND * WORK - TOLERANCE, DEMAND * max(WORK, end - begin) + TOLERANCE
    held_as_slurm_says(suite, lines, cluster, job, 2)
    for step in ("batch", "0"):
        used = total(lines, "used_ns", f"{holder}.{step}") - total(lines, "unheld_ns", f"{holder}.{step}")
        suite.expect(least <= used <= most, f"step {step} used {used} s, not {least} to {most}: {lines}")
    within = total(lines, "within_ns")
    suite.expect(2 * least <= within <= 2 * most, f"{within} s are within the holding of {holder}: {lines}")
    suite.expect(total(lines, "outside_holding_ns") == 0, f"a job's steps are outside of its holding: {lines}")


def hooks_succeed(suite):
    """A prolog or epilog that fails drains the node, one that takes long delays every job: how long is printed."""
    times = []
    for line in (suite.folder / "hooks.log").read_text().splitlines():
        name, job, status, _, nanoseconds = line.split()
        times.append(int(nanoseconds) / 1e6)
        suite.expect(status == "0", f"the {name} of job {job}: {line}")
    print(f"prolog and epilog, {len(times)} runs: {min(times):.0f} to {max(times):.0f} ms")


def lines_of(node, cluster, job):
    """The lines of a job on a bill whose windows have closed since the job ended."""
    end = cluster.times(job)[1]
    closed = lambda: stamp(node.bill()["closed_until"]) > end
    # A minute is on the bill when it is over and its windows are closed: 90 s after its begin.
    wait_for("the windows of the job", 300, closed, node.program, 0.5)
    bill = node.bill()
    return [line for line in bill["lines"] if line["holder"].split(".")[0] == holder_of(job)]


def held_as_slurm_says(suite, lines, cluster, job, gpus):
    begin, end = cluster.times(job)
    # The agent knows what prolog and epilog say, which run within the second, and on a busy machine later. An epilog that is lost
    # says nothing.
    prolog_at, epilog_at = (runs_by_hooks(suite, job) or [(begin, end)])[-1]
    expected = (max(end, epilog_at - 1) - max(begin, prolog_at - 1)) * gpus
    held = total(lines, "held_ns")
    suite.expect(abs(held - expected) <= TOLERANCE * gpus, f"job {job} held {held} s, and {expected} as Slurm and its hooks say: {lines}")


def total(lines, key, holder=None):
    """Seconds of these lines, or of those of one holder."""
    return sum(int(line[key]) for line in lines if holder in (None, line["holder"])) / 1e9


def stamp(text):
    """Seconds since 1970 of a time in UTC."""
    return datetime.fromisoformat(text.rstrip("Z")).replace(tzinfo=timezone.utc).timestamp()


class Cluster:
    """Two nodes on one machine, each with a slurmd of its own, and a third with an agent of its own."""

    def __init__(self, suite, node, third):
        self.suite, self.node, self.folder = suite, node, suite.folder
        for name in ("state", "munge", "dev", "third/dev", "out", "epilog.d", "summaries", "bin", "mariadb"):
            (self.folder / name).mkdir()
        (self.folder / "out").chmod(0o777)
        for gpu in range(GPUS + 1):
            # Slurm wants a device; its number is that of the file's name. It is /dev/null.
            os.mknod(self.folder / f"dev/nvidia{gpu}", 0o20666, os.makedev(1, 3))
        os.mknod(self.folder / "third/dev/nvidia0", 0o20666, os.makedev(1, 3))
        (self.folder / "pids").write_text("".join(f"{pid}\n" for pid in node.pids))
        self._script("step", STEP.format(worker=node.worker, folder=self.folder))
        for name, place in (("prolog", "prolog"), ("epilog", "epilog.d/50-gpumeter")):
            script = ROOT / f"packaging/slurm/{name}.sh"
            self._script(place, HOOK.format(folder=self.folder, name=name, script=script))
        (self.folder / "bin/gpumeter").symlink_to(GPUMETER.resolve())
        self._script("bin/logger", LOGGER.format(folder=self.folder))
        self.of_summaries = {"GPUMETER_SUMMARIES": f"{self.folder}/summaries",
                             "GPUMETER_SUMMARY_PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        environment = " ".join(f"{name}={value}" for name, value in self.of_summaries.items())
        for place in ("epilog.d/90-summary", "epilog-of-controller"):
            self._script(place, SUMMARY.format(
                folder=self.folder, nodes=NODES_DELAY, controller=CONTROLLER_DELAY, first=node.url, third=third.url,
                environment=environment, script=ROOT / "packaging/slurm/summary.sh"))
        self.ports = {name: free_port() for name in ("mariadbd", "slurmdbd")}
        self._configure()
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "TZ": "UTC"}
        os.environ.update(SLURM_CONF=self.environment["SLURM_CONF"], TZ="UTC")
        self._start()

    def _script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def _configure(self):
        host = socket.gethostname().split(".")[0]
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        folder = self.folder
        (folder / "slurm.conf").write_text(f"""ClusterName=alpha
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=30
CredType=cred/munge
SlurmctldPort={free_port()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self.ports["slurmdbd"]}
AccountingStoragePass={folder}/munge/socket
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu,shard
Prolog={folder}/prolog
Epilog={folder}/epilog.d/*
EpilogSlurmctld={folder}/epilog-of-controller
PrologFlags=Alloc
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MessageTimeout=100
NodeName=DEFAULT CPUs=16
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} Gres=gpu:{GPUS},shard:{GPUS * SHARDS}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} Gres=gpu:1
NodeName=node3 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} Gres=gpu:1
PartitionName=gpu Nodes=node1 Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=node1 PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=both Nodes=node[1-2] MaxTime=INFINITE State=UP
PartitionName=apart Nodes=node[1,3] MaxTime=INFINITE State=UP
""")
        (folder / "slurmdbd.conf").write_text(f"""AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={self.ports["slurmdbd"]}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.ports["mariadbd"]}
StorageUser=root
StorageLoc=slurm
""")
        (folder / "slurmdbd.conf").chmod(0o600)
        (folder / "gres.conf").write_text(f"""NodeName=node1 Name=gpu File={folder}/dev/nvidia[0-{GPUS - 1}]
NodeName=node1 Name=shard Count={GPUS * SHARDS} File={folder}/dev/nvidia[0-{GPUS - 1}]
NodeName=node2 Name=gpu File={folder}/dev/nvidia{GPUS}
NodeName=node3 Name=gpu File={folder}/third/dev/nvidia0
""")
        (folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n")

    def _start(self):
        folder = self.folder / "munge"
        self.suite.start("munged", "munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key",
                         *(f"--{name}-file={folder}/{name}" for name in ("pid", "log", "seed")),
                         f"--socket={folder}/socket")
        wait_for("munged", 10, (folder / "socket").exists)
        self._start_accounting()
        controller = self.suite.start("slurmctld", "slurmctld", "-D", "-i")
        daemons = [self.suite.start(f"slurmd-{node}", "slurmd", "-D", "-N", node) for node in ("node1", "node2", "node3")]
        states = lambda: self.run("sinfo", "--noheader", "--Node", "--partition=both,apart", "--format=%T").split()
        wait_for("idle nodes", 30, lambda: set(states()) == {"idle"}, daemons[0])
        self.programs = controller, *daemons
        # Ended before the daemons, which leave the processes of jobs alone.
        self.suite.end_first(self.cancel_all)

    def _start_accounting(self):
        """A slurmdbd with a database of its own."""
        options = ("mariadbd", "--no-defaults", "--user=root", f"--datadir={self.folder}/mariadb")
        tables = Path("/usr/share/mysql/mysql_system_tables.sql").read_text()
        subprocess.run([*options, "--bootstrap"], input=f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}", text=True, check=True,
                       capture_output=True, timeout=PATIENCE)
        port = self.ports["mariadbd"]
        database = self.suite.start("mariadbd", *options, f"--socket={self.folder}/mariadb/socket", f"--port={port}",
                                    "--bind-address=127.0.0.1", "--skip-grant-tables")
        answers = lambda port: socket.create_connection(("127.0.0.1", port)).close() or True
        wait_for("MariaDB", 30, lambda: answers(port), database)
        accounting = self.suite.start("slurmdbd", "slurmdbd", "-D")
        wait_for("slurmdbd", 30, lambda: answers(self.ports["slurmdbd"]), accounting)

    def cancel_all(self):
        self.run("scancel", "--user=games")
        self.run("scancel", "--user=news")
        wait_for("the end of all jobs", 20, lambda: not self.run("squeue", "--noheader").strip())

    def run(self, *command, user=None):
        """What a command of Slurm prints."""
        account = pwd.getpwnam(user) if user else None
        options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if user else {}
        done = subprocess.run(command, env=self.environment, cwd=self.folder / "out", capture_output=True, text=True,
                              timeout=PATIENCE, **options)
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def submit(self, user, account, work, *options):
        """A job whose processes work so many seconds on its GPUs; its number."""
        script = self._script(f"job-{user}-{work}", JOB.format(worker=self.node.worker, folder=self.folder, seconds=work))
        told = self.run("sbatch", "--parsable", f"--account={account}", *options, script, user=user)
        return int(told.split(";")[0])

    def comment(self, number):
        """The AdminComment of a job."""
        return self.run("sacct", "-nPX", "-j", str(number), "-o", "AdminComment").strip()

    def summary(self, *arguments):
        """Runs the project's epilog of summaries as a person does on the first node."""
        command = ["sh", ROOT / "packaging/slurm/summary.sh", *map(str, arguments)]
        environment = self.environment | self.of_summaries | {"GPUMETER_URL": self.node.url}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)

    def summed(self, *options):
        """A short job whose summary is stored when it has ended; its number."""
        job = int(self.run("sbatch", "--parsable", "--account=physics", *options, "--wrap=sleep 15", user="games"))
        (self.folder / f"sum-of-{job}").touch()
        return job

    def sleep(self, user, account, *options):
        """A job without a process on a GPU, until it is cancelled; its number."""
        return int(self.run("sbatch", "--parsable", f"--account={account}", *options, "--wrap=sleep 600", user=user))

    def submit_heterogeneous(self, user, account, components):
        """A job of several components; the number of the first."""
        options = [["--partition=both", "--ntasks=1", f"--account={account}", *one] for one in components]
        told = self.run("sbatch", "--parsable", *options[0], *(word for one in options[1:] for word in (":", *one)),
                        self._script("het-job", HET_JOB), user=user)
        return int(told.split(";")[0])

    def allocate(self, user, account, *options):
        """An allocation without a step; its number."""
        self.run("salloc", "--no-shell", f"--account={account}", "--job-name=idle", *options, user=user)
        return int(self.run("squeue", "--noheader", "--name=idle", "--format=%A"))

    def tasks(self, number):
        """Number of the job and of the task, of each task of an array."""
        text = self.run("scontrol", "show", "job", "--oneliner", str(number))
        jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
        return [(int(job["JobId"]), job["ArrayTaskId"]) for job in jobs]

    def job(self, number):
        """What Slurm says of a job."""
        text = self.run("scontrol", "show", "job", "--oneliner", str(number))
        jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
        return next(job for job in jobs if job["JobId"] == str(number))

    def times(self, number):
        """Start and end of the job."""
        job = self.job(number)
        return stamp(job["StartTime"]), stamp(job["EndTime"])

    def wait_for_end(self, number, expected="COMPLETED"):
        ended = lambda: self.job(number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
        wait_for(f"the end of job {number}", 240, ended, self.programs[1], 0.5)
        state = self.job(number)["JobState"]
        self.suite.expect(state == expected, f"job {number} is {state}")


if __name__ == "__main__":
    harness.run(slurm)
