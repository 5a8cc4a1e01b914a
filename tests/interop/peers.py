"""What others see through the same driver: nvidia-ml-py, nvitop, nvitop-exporter and all-smi, against the
scenario and our own snapshot.

Scenario `local` simulates processes under pids that exist here, since nvitop asks the kernel about each.
The clock is held at the very moment of a tick, so that all readers and a file speak of one moment. The two
exporters ask again and again; while the clock is held they get the same answers, so nothing is off by time, and
what is tolerated below is how they round.
"""

import json
import os
import re
import subprocess
import sys
import time

import harness
from harness import Demo, Failed

# Every tier is read at every tick, so that all readings of a snapshot are of one time.
CONFIG = "node: { name: local }\nsampling: { level: full, interval: 1s, medium: 1s, slow: 1s }\nattribution: { presence: true }\n"
# The values that are read by nvidia-ml-py below, and the series with the same value of each GPU.
SAME = {
    "memory_used_bytes": ("gpu_memory_used_bytes", {}),
    "memory_total_bytes": ("gpu_memory_total_bytes", {}),
    "memory_free_bytes": ("gpu_memory_free_bytes", {}),
    "memory_reserved_bytes": ("gpu_memory_reserved_bytes", {}),
    "power_watts": ("gpu_power_watts", {}),
    "temperature_celsius": ("gpu_temperature_celsius", {"sensor": "gpu"}),
    "sm_clock_hertz": ("gpu_clock_hertz", {"clock": "sm"}),
}
MIB = 2**20
# For each exporter: family, size of its unit in ours, and the allowed difference in our unit. nvitop-exporter rounds to a
# tenth of a MiB.
NVITOP = {
    "utilization_percent": ("gpu_utilization_Percentage", 1, 0),
    "memory_used_bytes": ("gpu_memory_used_MiB", MIB, MIB),
    "memory_total_bytes": ("gpu_memory_total_MiB", MIB, MIB),
    "power_watts": ("gpu_power_usage_W", 1, 0.001),
    "temperature_celsius": ("gpu_temperature_C", 1, 0),
    "sm_clock_hertz": ("gpu_clock_sm_MHz", 1_000_000, 0),
}
ALL_SMI = {
    "utilization_percent": ("all_smi_gpu_utilization", 1, 0),
    "memory_used_bytes": ("all_smi_gpu_memory_used_bytes", 1, 0),
    "memory_total_bytes": ("all_smi_gpu_memory_total_bytes", 1, 0),
    "power_watts": ("all_smi_gpu_power_consumption_watts", 1, 0.001),
    "temperature_celsius": ("all_smi_gpu_temperature_celsius", 1, 0),
}


def peers(suite):
    demo = Demo(suite, scenario="local", config=CONFIG)
    harness.wait_for("processes in the snapshot", 60, lambda: processes_of_snapshot(series(demo)), demo.program, 1)
    # On a busy machine a sampler may be late; then everything is repeated more slowly.
    for pause in (2, 4, 8, 16, 32):
        driver, table, ours = one_moment(demo, pause)
        moment = demo.clock.utc() / 1e9 - 0.2
        stamps = [value for _, value in ours["gpumeter_last_sample_timestamp_seconds"]]
        if stamps and all(abs(stamp - moment) < 1e-3 for stamp in stamps):
            break
        demo.clock.release()
        time.sleep(2)
    else:
        raise Failed(f"no tick was read at the held moment {moment}, but at {stamps}")

    scenario = processes_of_scenario(demo)
    suite.expect(len(scenario) == 3, f"the scenario has {len(scenario)} processes at this moment, so little was compared")
    suite.expect(processes_of_driver(driver) == scenario,
                 f"nvidia-ml-py sees the processes {processes_of_driver(driver)}, the scenario has {scenario}")
    mine = processes_of_snapshot(ours)
    suite.expect(mine == scenario, f"/api/v1/snapshot has the processes {mine}, the scenario {scenario}")

    info = sorted((int(labels["gpu"]), labels["uuid"], labels["model"]) for labels, _ in ours["gpu_info"])
    theirs = [(gpu["gpu"], gpu["uuid"], gpu["name"]) for gpu in driver]
    suite.expect(info == theirs, f"the GPUs are {info} for us, {theirs} for nvidia-ml-py")
    for gpu in driver:
        for name, (family, labels) in SAME.items():
            wanted = {"gpu": str(gpu["gpu"]), "uuid": gpu["uuid"], **labels}
            values = [value for labels, value in ours.get(family, ()) if labels == wanted]
            suite.expect(values == [gpu[name]], f"GPU {gpu['gpu']}: {family} is {values} for us, {gpu[name]} for nvidia-ml-py")

    for gpu in driver:
        shown = sizes(gpu["memory_used_bytes"])
        suite.expect(any(size in table for size in shown), f"nvitop shows none of {shown} in use on GPU {gpu['gpu']}:\n{table}")
    rows = re.findall(r"^\|\s+(\d+)\s+(\d+)\s+[CGX]\s+\S+\s+(\S+)", table, re.M)
    listed = {(int(gpu), int(pid)): size for gpu, pid, size in rows}
    expected = {(gpu, pid): sizes(memory) for gpu, pid, memory in scenario}
    suite.expect(listed.keys() == expected.keys() and all(listed[key] in expected[key] for key in listed),
                 f"nvitop lists (gpu, pid) and memory {listed}, the scenario has {expected}:\n{table}")

    exporters(suite, demo, scenario)


def exporters(suite, demo, scenario):
    """nvitop-exporter and all-smi, at the time at which the clock is held."""
    driver = json.loads(peer(demo, __file__, "nvml"))
    suite.expect(any(gpu["utilization_percent"] for gpu in driver), "no GPU is busy at this moment, so little is compared")
    pages = {
        "nvitop-exporter": start_nvitop_exporter(suite, demo, len(driver), 0.5)[2],
        "all-smi": start_all_smi(suite, demo, len(driver), 1)[2],
    }
    for name, table, gpu_label in (("nvitop-exporter", NVITOP, "uuid"), ("all-smi", ALL_SMI, "gpu_uuid")):
        for gpu in driver:
            for ours, (family, unit, tolerance) in table.items():
                values = [value * unit for labels, value in pages[name].get(family, ()) if labels.get(gpu_label) == gpu["uuid"]]
                suite.expect(len(values) == 1 and abs(values[0] - gpu[ours]) <= tolerance,
                             f"GPU {gpu['gpu']}: {family} of {name} is {values}, the driver says {gpu[ours]}")
    wanted = {(gpu, pid): memory for gpu, pid, memory in scenario}
    listed = {(int(labels["index"]), int(labels["pid"])): value * MIB
              for labels, value in pages["nvitop-exporter"].get("process_gpu_memory_MiB", ())}
    suite.expect(listed.keys() == wanted.keys() and all(abs(listed[key] - wanted[key]) <= MIB for key in listed),
                 f"nvitop-exporter has (gpu, pid) and memory {listed}, the scenario {wanted}")
    # It lists every process of the host; those that use no GPU have no memory there.
    listed = {(int(labels["gpu_index"]), int(labels["pid"])): value
              for labels, value in pages["all-smi"].get("all_smi_process_memory_used_bytes", ()) if value}
    suite.expect(listed == wanted, f"all-smi has (gpu, pid) and memory {listed}, the scenario {wanted}")


def start_nvitop_exporter(suite, demo, gpus, interval):
    """The program, its port, and its page as soon as that has all GPUs and processes."""
    port = harness.free_port()
    program = suite.start("nvitop-exporter", "env", f"LD_LIBRARY_PATH={demo.driver}", sys.executable, "-m", "nvitop_exporter",
                          "--bind-address", "127.0.0.1", "--port", str(port), "--interval", str(interval))
    return program, port, settled(f"http://127.0.0.1:{port}/metrics", "process_gpu_memory_MiB", "gpu_power_usage_W", gpus, program)


def start_all_smi(suite, demo, gpus, interval):
    """The same of all-smi; it looks for GPUs only where `nvidia-smi -L` lists some, under the name without a version."""
    tools = suite.folder / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text('#!/bin/sh\necho "GPU 0: NVIDIA H100 (simulated) (UUID: GPU-0)"\n')
    (tools / "nvidia-smi").chmod(0o755)
    link = demo.driver / "libnvidia-ml.so"
    if not link.is_symlink():
        link.symlink_to("libnvidia-ml.so.1")
    port = harness.free_port()
    program = suite.start("all-smi", "env", f"LD_LIBRARY_PATH={demo.driver}", f"PATH={tools}:{os.environ['PATH']}",
                          "all-smi", "api", "--port", str(port), "--interval", str(interval), "--processes")
    return program, port, settled(f"http://127.0.0.1:{port}/metrics", "all_smi_process_memory_used_bytes", "all_smi_gpu_power_consumption_watts", gpus, program)


def settled(url, processes, power, gpus, program):
    """A page's series by family, when it shows processes on GPUs and all GPUs, twice the same: it reads one by one.

    all-smi lists every process of the host, and on a busy one those off the GPUs are never twice the same.
    """
    former = []

    def look():
        page = families(harness.get(url)[0])
        shown = [sorted(repr(one) for one in page.get(family, ()) if one[1]) for family in (processes, power)]
        whole = shown[0] and len(shown[1]) == gpus and shown == former
        former[:] = shown
        return page if whole else None

    return harness.wait_for(f"all GPUs and processes on {url}", 60, look, program, 1)


def families(page):
    """The labels and values of the series of each family; parsed by hand, so that no parser changes them."""
    found = {}
    for name, labels, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", page, re.M):
        pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        found.setdefault(name, []).append((pairs, float(value)))
    return found


def one_moment(demo, pause):
    """The values of nvidia-ml-py, nvitop and the agent at one time of a held clock."""
    demo.hold_between_ticks()
    demo.clock.advance(-demo.clock.boot() % 10**9)
    # The samplers poll a held clock at intervals.
    time.sleep(pause)
    driver = json.loads(peer(demo, __file__, "nvml"))
    table = peer(demo, "-m", "nvitop", "--once", "--ascii")
    # The samplers have read by now; the tick loop runs a fifth of an interval later.
    demo.clock.advance(2 * 10**8)
    time.sleep(pause)
    return driver, table, series(demo)


def sizes(size):
    """The spellings that nvitop uses."""
    return f"{size / 2**20:.0f}MiB", f"{size / 2**20:.1f}MiB", f"{size / 2**30:.2f}GiB", f"{size / 2**30:.1f}GiB"


def peer(demo, *arguments):
    """The output of a Python program that finds the demo's driver in the place of a real one."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(demo.driver), "TERM": "dumb", "COLUMNS": "200", "LINES": "200"}
    answer = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    if answer.returncode:
        raise Failed(f"{' '.join(arguments)} ends with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
    return answer.stdout


def series(demo):
    """Of each family in the snapshot, the labels and values of its series."""
    return {family["name"]: [(one["labels"], one["value"]) for one in family["series"]]
            for family in demo.api("snapshot")["families"]}


def processes_of_scenario(demo):
    """(gpu, pid, bytes) of every process that exists now."""
    scenario = demo.scenario()
    now = demo.clock.elapsed() / 1e9 % scenario.get("cycle_seconds", 600)
    return {(process["gpu"], process["pid"], phase.get("memory_bytes", 0))
            for process in scenario["processes"] for phase in process["phases"] if phase["from"] <= now < phase["to"]}


def processes_of_driver(driver):
    return {(gpu["gpu"], process["pid"], process["memory_bytes"]) for gpu in driver for process in gpu["processes"]}


def processes_of_snapshot(ours):
    return {(int(labels["gpu"]), int(labels["pid"]), value) for labels, value in ours.get("gpu_process_memory_bytes", ())}


def nvml():
    """The program that runs with nvidia-ml-py and prints its values in our units."""
    import pynvml

    pynvml.nvmlInit()
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
        gpus.append({
            "gpu": index,
            "uuid": pynvml.nvmlDeviceGetUUID(gpu),
            "name": pynvml.nvmlDeviceGetName(gpu),
            "memory_used_bytes": memory.used,
            "memory_total_bytes": memory.total,
            "memory_free_bytes": memory.free,
            "memory_reserved_bytes": memory.reserved,
            "utilization_percent": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "power_watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature_celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
            "sm_clock_hertz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1_000_000,
            "processes": [{"pid": process.pid, "memory_bytes": process.usedGpuMemory}
                          for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
        })
    print(json.dumps(gpus))


if __name__ == "__main__":
    nvml() if sys.argv[1:] == ["nvml"] else harness.run(peers)
