"""What others see through the same driver: nvidia-ml-py and nvitop, against the scenario and our own snapshot.

Scenario `local` simulates processes under pids that exist here, since nvitop asks the kernel about each.
The clock is held, so that three readers and a file speak of one moment.
"""

import json
import os
import re
import subprocess
import sys
import time

import harness
from harness import Demo, Failed

# Temperature is otherwise read every 5 s, and would be of another moment than the peers'.
EVERY_TICK = {"sampling": {"medium": "1s"}}

# Our families, and what nvidia-ml-py calls the same.
FAMILIES = {
    "gpu_memory_used_bytes": "memory_used_bytes",
    "gpu_memory_total_bytes": "memory_total_bytes",
    "gpu_power_watts": "power_watts",
    "gpu_temperature_celsius": "temperature_celsius",
}


def peers(suite):
    demo = Demo(suite, "--fresh", scenario="local", config=EVERY_TICK)
    harness.wait_for("processes in the snapshot", 60, lambda: processes_of_snapshot(demo), demo.program, 1)
    demo.clock.hold()
    time.sleep(5)  # a tick that had begun ends, and the page follows

    driver = json.loads(peer(demo, __file__, "nvml"))
    snapshot = demo.api("snapshot")
    scenario = processes_of_scenario(demo)
    suite.expect(scenario, "the scenario has no process at this moment, so nothing was compared")

    suite.expect(processes_of_driver(driver) == scenario,
                 f"nvidia-ml-py sees the processes {processes_of_driver(driver)}, the scenario has {scenario}")
    ours = processes_of_snapshot(demo)
    suite.expect(ours == scenario, f"/api/v1/snapshot has the processes {ours}, the scenario {scenario}")

    for name, theirs in FAMILIES.items():
        for gpu in driver:
            mine = value(snapshot, name, uuid=gpu["uuid"], gpu=str(gpu["gpu"]))
            suite.expect(mine == gpu[theirs], f"GPU {gpu['gpu']}: {name} is {mine} for us, {gpu[theirs]} for nvidia-ml-py")
    for gpu in driver:
        known = [series["labels"]["model"] for series in family(snapshot, "gpu_info") if series["labels"]["uuid"] == gpu["uuid"]]
        suite.expect(known == [gpu["name"]], f"GPU {gpu['gpu']} is {known} for us, {gpu['name']} for nvidia-ml-py")

    table = peer(demo, "-m", "nvitop", "--once", "--ascii")
    for gpu in driver:
        used = gpu["memory_used_bytes"]
        suite.expect(f"{used / 2**20:.0f}MiB" in table or f"{used / 2**30:.2f}GiB" in table,
                     f"nvitop does not show the {used} bytes in use on GPU {gpu['gpu']}:\n{table}")
    shown = {(int(gpu), int(pid)) for gpu, pid in re.findall(r"^\|\s+(\d+)\s+(\d+)\s+[CGX]", table, re.M)}
    expected = {(gpu, pid) for gpu, pid, _ in scenario}
    suite.expect(shown == expected, f"nvitop shows (gpu, pid) {shown}, the scenario has {expected}:\n{table}")


def peer(demo, *arguments):
    """What a Python program prints that finds the demo's driver where a real one would be."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(demo.driver), "TERM": "dumb", "COLUMNS": "200", "LINES": "200"}
    answer = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    if answer.returncode:
        raise Failed(f"{' '.join(arguments)} ends with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
    return answer.stdout


def processes_of_scenario(demo):
    """(gpu, pid, bytes) of every process that exists now."""
    scenario = demo.scenario()
    now = demo.clock.elapsed() / 1e9 % scenario.get("cycle_seconds", 600)
    return {(process["gpu"], process["pid"], phase.get("memory_bytes", 0))
            for process in scenario["processes"] for phase in process["phases"] if phase["from"] <= now < phase["to"]}


def processes_of_driver(driver):
    return {(gpu["gpu"], process["pid"], process["memory_bytes"]) for gpu in driver for process in gpu["processes"]}


def processes_of_snapshot(demo):
    return {(int(series["labels"]["gpu"]), int(series["labels"]["pid"]), series["value"])
            for series in family(demo.api("snapshot"), "gpu_process_memory_bytes")}


def family(snapshot, name):
    """The series of a family, none if it is not there."""
    return next((family["series"] for family in snapshot["families"] if family["name"] == name), [])


def value(snapshot, name, **labels):
    """The value of the one series with these labels; a sensor is the GPU's own."""
    labels |= {"sensor": "gpu"} if name == "gpu_temperature_celsius" else {}
    found = [series["value"] for series in family(snapshot, name)
             if all(series["labels"].get(label) == text for label, text in labels.items())]
    return found[0] if len(found) == 1 else None


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
            "power_watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature_celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
            "processes": [{"pid": process.pid, "memory_bytes": process.usedGpuMemory}
                          for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
        })
    print(json.dumps(gpus))


if __name__ == "__main__":
    nvml() if sys.argv[1:] == ["nvml"] else harness.run(peers)
