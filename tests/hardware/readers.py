"""What other programs read of the same driver, as [family, labels, value] in the page's names and units.

    python3 readers.py nvml      prints a JSON line for each reading of nvidia-ml-py, twice a second, until its input ends

It runs as a program of its own: a driver call that hangs or a library that crashes ends this reader alone.
"""

import json
import re
import select
import sys
import time
import xml.etree.ElementTree

MIB = 2**20
# Series that the page may leave out although another reader shows a value: it says why in gpu_unsupported, or by its level.
OPTIONAL = ("gpu_temperature_limit_celsius", "gpu_engine_utilization_ratio", "gpu_memory_power_watts", "gpu_nvlink_links_up",
            "gpu_nvlink_link_up", "gpu_process_memory_bytes", "gpu_retired_pages", "gpu_fan_speed_ratio")
THROTTLES = {"sw_power_cap": 0x4, "sync_boost": 0x10, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80}
FIELD_KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Reader:
    """Values of one GPU by nvidia-ml-py; whatever a driver, a board or an older nvidia-ml-py does not have is left out."""

    def __init__(self, nvml, handle):
        self.nvml, self.handle, self.found = nvml, handle, []
        self.uuid = text(nvml.nvmlDeviceGetUUID(handle))

    def ask(self, name, *arguments, handle=None):
        """The answer of a function of the device, or None."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{name}")(handle or self.handle, *arguments)
        except (self.nvml.NVMLError, AttributeError, TypeError, ValueError, UnicodeDecodeError):
            return None

    def constant(self, name):
        return getattr(self.nvml, name, None)

    def field(self, id):
        """A value of nvmlDeviceGetFieldValues, or None."""
        answer = self.ask("FieldValues", [id])
        if not answer or answer[0].nvmlReturn != 0 or answer[0].valueType >= len(FIELD_KINDS):
            return None
        return getattr(answer[0].value, FIELD_KINDS[answer[0].valueType], None)

    def put(self, family, value, unit=1, **labels):
        if value is not None:
            self.found.append([family, {"uuid": self.uuid, **labels}, value * unit])

    def read(self):
        for part in (self.identity, self.memory, self.activity, self.power, self.clocks, self.links, self.errors, self.processes,
                     self.instances):
            part()
        return self.found

    def identity(self):
        pci = self.ask("PciInfo")
        texts = {"model": self.ask("Name"), "serial": self.ask("Serial"), "vbios_version": self.ask("VbiosVersion"),
                 "pci_bus_id": pci and pci.busId, "board_part": self.ask("BoardPartNumber")}
        for label, value in texts.items():
            if value:
                self.put("gpu_info", 1, **{label: text(value)})
        if (minor := self.ask("MinorNumber")) is not None:
            self.put("gpu_info", 1, minor_number=str(minor))
        self.put("gpu_mode_enabled", self.ask("PersistenceMode"), feature="persistence")
        for name, feature in (("EccMode", "ecc"), ("MigMode", "mig")):
            if modes := self.ask(name):
                self.put("gpu_mode_enabled", modes[0], feature=feature)
                self.put("gpu_mode_enabled", modes[1], feature=f"{feature}_pending")
        self.put("gpu_mode_enabled", self.ask("AccountingMode"), feature="accounting")
        states = ("default", "exclusive_thread", "prohibited", "exclusive_process")
        if (mode := self.ask("ComputeMode")) is not None and mode < len(states):
            self.put("gpu_compute_mode", 1, state=states[mode])
        self.put("gpu_performance_state", self.ask("PerformanceState"))

    def memory_of(self, handle=None):
        """Used memory without what is reserved, as the page has it, needs the second version of the structure."""
        version = self.constant("nvmlMemory_v2")
        return self.ask("MemoryInfo", version, handle=handle) if version else None

    def memory(self):
        if memory := self.memory_of():
            for name in ("total", "used", "free", "reserved"):
                self.put(f"gpu_memory_{name}_bytes", getattr(memory, name))
        if bar1 := self.ask("BAR1MemoryInfo"):
            self.put("gpu_bar1_total_bytes", bar1.bar1Total)
            self.put("gpu_bar1_used_bytes", bar1.bar1Used)

    def activity(self):
        if rates := self.ask("UtilizationRates"):
            self.put("gpu_utilization_ratio", rates.gpu, 0.01)
            self.put("gpu_memory_activity_ratio", rates.memory, 0.01)
        for engine in ("Encoder", "Decoder", "Jpg", "Ofa"):
            if answer := self.ask(f"{engine}Utilization"):
                self.put("gpu_engine_utilization_ratio", answer[0], 0.01, engine=engine.lower().replace("jpg", "jpeg"))

    def power(self):
        self.put("gpu_power_watts", self.ask("PowerUsage"), 1e-3)
        self.put("gpu_power_instant_watts", self.field(186), 1e-3)
        self.put("gpu_energy_joules_total", self.ask("TotalEnergyConsumption"), 1e-3)
        limits = {"enforced": self.ask("EnforcedPowerLimit"), "requested": self.ask("PowerManagementLimit"),
                  "default": self.ask("PowerManagementDefaultLimit")}
        limits["min"], limits["max"] = self.ask("PowerManagementLimitConstraints") or (None, None)
        for limit, value in limits.items():
            self.put("gpu_power_limit_watts", value, 1e-3, limit=limit)
        self.put("gpu_temperature_celsius", self.ask("Temperature", 0), sensor="gpu")
        # Boards without a sensor there answer 0.
        self.put("gpu_temperature_celsius", self.field(82) or None, sensor="memory")
        for number, limit in enumerate(("shutdown", "slowdown", "memory_max_operating", "gpu_max_operating")):
            self.put("gpu_temperature_limit_celsius", self.ask("TemperatureThreshold", number), limit=limit)
        for fan in range(self.ask("NumFans") or 0):
            self.put("gpu_fan_speed_ratio", self.ask("FanSpeed_v2", fan), 0.01, fan=str(fan))

    def clocks(self):
        for number, clock in enumerate(("graphics", "sm", "memory", "video")):
            self.put("gpu_clock_hertz", self.ask("ClockInfo", number), 1_000_000, clock=clock)
            self.put("gpu_clock_max_hertz", self.ask("MaxClockInfo", number), 1_000_000, clock=clock)
        reasons = self.ask("CurrentClocksEventReasons")
        reasons = self.ask("CurrentClocksThrottleReasons") if reasons is None else reasons
        if reasons is not None:
            self.put("gpu_clock_event_reasons", reasons)
            for reason, bit in THROTTLES.items():
                self.put("gpu_throttle_active", int(reasons & bit != 0), reason=reason)

    def links(self):
        self.put("gpu_pcie_link_generation", self.ask("CurrPcieLinkGeneration"))
        self.put("gpu_pcie_link_generation_max", self.ask("MaxPcieLinkGeneration"))
        self.put("gpu_pcie_link_width", self.ask("CurrPcieLinkWidth"))
        self.put("gpu_pcie_link_width_max", self.ask("MaxPcieLinkWidth"))
        self.put("gpu_pcie_replays_total", self.ask("PcieReplayCounter"))
        states = [self.ask("NvLinkState", link) for link in range(self.constant("NVML_NVLINK_MAX_LINKS") or 18)]
        for link, state in enumerate(states):
            self.put("gpu_nvlink_link_up", state, link=str(link))
        if any(state is not None for state in states):
            self.put("gpu_nvlink_links_up", sum(state or 0 for state in states))

    def errors(self):
        for kind, type in enumerate(("corrected", "uncorrected")):
            for place, location in ((2, "dram"), (7, "sram")):
                self.put("gpu_ecc_errors_total", self.ask("MemoryErrorCounter", kind, 0, place), type=type, location=location)
                self.put("gpu_ecc_lifetime_errors_total", self.ask("MemoryErrorCounter", kind, 1, place), type=type, location=location)
        if rows := self.ask("RemappedRows"):
            self.put("gpu_remapped_rows", rows[0], cause="correctable")
            self.put("gpu_remapped_rows", rows[1], cause="uncorrectable")
            self.put("gpu_row_remap_pending", int(rows[2]))
            self.put("gpu_row_remap_failure", int(rows[3]))
        if banks := self.ask("RowRemapperHistogram"):
            for availability in ("max", "high", "partial", "low", "none"):
                self.put("gpu_row_remap_banks", getattr(banks, availability, None), availability=availability)

    def processes(self):
        for process in self.ask("ComputeRunningProcesses") or ():
            self.put("gpu_process_memory_bytes", process.usedGpuMemory, pid=str(process.pid))

    def instances(self):
        seen = set()
        for number in range(self.ask("MaxMigDeviceCount") or 0):
            handle = self.ask("MigDeviceHandleByIndex", number)
            instance = handle and self.ask("GpuInstanceId", handle=handle)
            if instance is None:
                continue
            self.put("gpu_mig_info", 1, gpu_instance=str(instance), mig_uuid=text(self.ask("UUID", handle=handle)))
            if instance in seen:
                continue  # another compute instance of it
            seen.add(instance)
            if memory := self.memory_of(handle):
                for name in ("total", "used", "free"):
                    self.put(f"gpu_mig_memory_{name}_bytes", getattr(memory, name), gpu_instance=str(instance))


def text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def of_smi(document):
    """The same of what `nvidia-smi -q -x` prints; names of elements as drivers from 470 to 590 have them."""
    found = []
    root = xml.etree.ElementTree.fromstring(document)
    versions = [("driver_version", root.findtext("driver_version"))]
    for gpu in root.findall("gpu"):
        uuid = gpu.findtext("uuid", "").strip()
        put = lambda family, value, **labels: value is not None and found.append([family, {"uuid": uuid, **labels}, value])
        numbers = lambda paths, unit: (number(gpu.findtext(path), unit) for path in paths)
        first = lambda *paths, unit=1: next((found for found in numbers(paths, unit) if found is not None), None)
        texts = [("model", "product_name"), ("serial", "serial"), ("vbios_version", "vbios_version"), ("pci_bus_id", "pci/pci_bus_id"),
                 ("minor_number", "minor_number"), ("board_part", "board_part_number")]
        for label, value in [(label, gpu.findtext(path)) for label, path in texts] + versions:
            if value and "N/A" not in value:
                put("gpu_info", 1, **{label: value.strip()})
        memory_of_smi(gpu, first, put)
        power_of_smi(first, put)
        links_and_errors_of_smi(gpu, first, put)
    return found


def memory_of_smi(gpu, first, put):
    for name in ("total", "used", "free", "reserved"):
        # Before it was a part of its own, what is reserved was in what is used.
        if name not in ("used", "reserved") or gpu.find("fb_memory_usage/reserved") is not None:
            put(f"gpu_memory_{name}_bytes", first(f"fb_memory_usage/{name}", unit=MIB))
    for name in ("total", "used"):
        put(f"gpu_bar1_{name}_bytes", first(f"bar1_memory_usage/{name}", unit=MIB))
    put("gpu_utilization_ratio", first("utilization/gpu_util", unit=0.01))
    put("gpu_memory_activity_ratio", first("utilization/memory_util", unit=0.01))
    for engine in ("encoder", "decoder", "jpeg", "ofa"):
        put("gpu_engine_utilization_ratio", first(f"utilization/{engine}_util", unit=0.01), engine=engine)
    for process in gpu.findall("processes/process_info"):
        if "C" in process.findtext("type", ""):
            put("gpu_process_memory_bytes", number(process.findtext("used_memory"), MIB), pid=process.findtext("pid", "").strip())
    for device in gpu.findall("mig_devices/mig_device"):
        instance = device.findtext("gpu_instance_id", "").strip()
        for name in ("total", "used", "free"):
            put(f"gpu_mig_memory_{name}_bytes", number(device.findtext(f"fb_memory_usage/{name}"), MIB), gpu_instance=instance)


def power_of_smi(first, put):
    """Drivers before 535 call the parent `power_readings`; newer ones tell average and instant apart."""
    parents = ("gpu_power_readings", "power_readings")
    read = lambda *names: first(*(f"{parent}/{name}" for parent in parents for name in names))
    put("gpu_power_watts", read("average_power_draw", "power_draw"))
    put("gpu_power_instant_watts", read("instant_power_draw"))
    put("gpu_power_limit_watts", read("enforced_power_limit", "current_power_limit"), limit="enforced")
    for limit in ("requested", "default", "min", "max"):
        put("gpu_power_limit_watts", read(f"{limit}_power_limit"), limit=limit)
    put("gpu_temperature_celsius", first("temperature/gpu_temp"), sensor="gpu")
    put("gpu_temperature_celsius", first("temperature/memory_temp") or None, sensor="memory")
    for clock, name in (("graphics", "graphics"), ("sm", "sm"), ("memory", "mem"), ("video", "video")):
        put("gpu_clock_hertz", first(f"clocks/{name}_clock", unit=1_000_000), clock=clock)
        put("gpu_clock_max_hertz", first(f"max_clocks/{name}_clock", unit=1_000_000), clock=clock)


def links_and_errors_of_smi(gpu, first, put):
    state = gpu.findtext("performance_state", "")
    put("gpu_performance_state", int(state.strip()[1:]) if re.fullmatch(r"\s*P\d+\s*", state) else None)
    link = "pci/pci_gpu_link_info"
    put("gpu_pcie_link_generation", first(f"{link}/pcie_gen/current_link_gen"))
    # Before 525 the only one was what GPU and system reach together.
    put("gpu_pcie_link_generation_max", first(f"{link}/pcie_gen/max_link_gen"))
    put("gpu_pcie_link_width", first(f"{link}/link_widths/current_link_width"))
    put("gpu_pcie_link_width_max", first(f"{link}/link_widths/max_link_width"))
    put("gpu_pcie_replays_total", first("pci/replay_counter"))
    for scope, family in (("volatile", "gpu_ecc_errors_total"), ("aggregate", "gpu_ecc_lifetime_errors_total")):
        for location in ("dram", "sram"):
            name = f"ecc_errors/{scope}/{location}"
            put(family, first(f"{name}_correctable"), type="corrected", location=location)
            parts = [first(f"{name}_uncorrectable{kind}") for kind in ("", "_parity", "_secded")]
            if any(part is not None for part in parts):
                put(family, sum(part or 0 for part in parts), type="uncorrected", location=location)
    put("gpu_remapped_rows", first("remapped_rows/remapped_row_corr"), cause="correctable")
    put("gpu_remapped_rows", first("remapped_rows/remapped_row_unc"), cause="uncorrectable")
    for name in ("pending", "failure"):
        answer = {"No": 0, "Yes": 1}.get(gpu.findtext(f"remapped_rows/remapped_row_{name}", "").strip())
        put(f"gpu_row_remap_{name}", answer)


def number(content, unit=1):
    """The number at the begin of `400.00 W`, `81559 MiB`, `16x`, or None where there is none."""
    match = re.match(r"\s*(-?\d+(?:\.\d+)?)", content or "")
    return float(match[1]) * unit if match else None


def main():
    import pynvml

    pynvml.nvmlInit()
    last = False
    while not last:
        # One more after the end of the input: what moves is then read after everything else.
        last = bool(select.select([sys.stdin], [], [], 0.4)[0])
        values = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            values += Reader(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)).read()
        print(json.dumps({"at": time.time(), "values": values}), flush=True)


if __name__ == "__main__":
    main()
