"""What others see through the same driver: nvidia-ml-py and nvitop, against the scenario and our own snapshot.

Scenario `local` simulates processes under pids that exist here, since nvitop asks the kernel about each.
The clock is held at the very moment of a tick, so that three readers and a file speak of one moment.
"""

import json
import os
import re
import subprocess
import sys
import time

import harness
from harness import Demo, Failed

# Every tier at every tick: then all that the snapshot says is of one moment.
CONFIG = "node: { name: local }\nsampling: { level: full, interval: 1s, medium: 1s, slow: 1s }\nattribution: { presence: true }\n"
# What nvidia-ml-py is asked below, and the series that says the same of each GPU.
SAME = {
    "memory_used_bytes": ("gpu_memory_used_bytes", {}),
    "memory_total_bytes": ("gpu_memory_total_bytes", {}),
    "memory_free_bytes": ("gpu_memory_free_bytes", {}),
    "memory_reserved_bytes": ("gpu_memory_reserved_bytes", {}),
    "power_watts": ("gpu_power_watts", {}),
    "temperature_celsius": ("gpu_temperature_celsius", {"sensor": "gpu"}),
    "sm_clock_hertz": ("gpu_clock_hertz", {"clock": "sm"}),
}


def peers(suite):
    demo = Demo(suite, scenario="local", config=CONFIG)
    harness.wait_for("processes in the snapshot", 60, lambda: processes_of_snapshot(series(demo)), demo.program, 1)
    for _ in range(5):
        driver, table, ours = one_moment(demo)
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


def one_moment(demo):
    """What nvidia-ml-py, nvitop and the agent say of one moment at which the clock is held."""
    demo.clock.hold_between_ticks()
    demo.clock.advance(-demo.clock.boot() % 10**9)
    driver = json.loads(peer(demo, __file__, "nvml"))
    table = peer(demo, "-m", "nvitop", "--once", "--ascii")
    # The lanes have read long since; the pulse comes a fifth of a tick later.
    demo.clock.advance(2 * 10**8)
    time.sleep(2)
    return driver, table, series(demo)


def sizes(size):
    """Ways in which nvitop writes it."""
    return f"{size / 2**20:.0f}MiB", f"{size / 2**20:.1f}MiB", f"{size / 2**30:.2f}GiB", f"{size / 2**30:.1f}GiB"


def peer(demo, *arguments):
    """What a Python program prints that finds the demo's driver where a real one would be."""
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
    """The other program: what nvidia-ml-py is told, in our units."""
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
            "power_watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature_celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
            "sm_clock_hertz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1_000_000,
            "processes": [{"pid": process.pid, "memory_bytes": process.usedGpuMemory}
                          for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
        })
    print(json.dumps(gpus))


if __name__ == "__main__":
    nvml() if sys.argv[1:] == ["nvml"] else harness.run(peers)
