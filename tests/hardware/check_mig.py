"""6: MIG instances, only where MIG is on: it is never switched."""

from report import NotPossible
from tolerances import LIMITS

CHECK = 6


def check(session):
    settled, page = session.watch.history[-1]
    divided = [labels["uuid"] for labels, _ in page.find("gpu_info", mig="true")]
    if not divided:
        raise NotPossible("MIG is off on every GPU, and stays off")
    for uuid in divided:
        instances = sorted({labels["gpu_instance"] for labels, _ in page.find("gpu_mig_info", uuid=uuid)})
        gpu = page.find("gpu_info", uuid=uuid)[0][0]["gpu"]
        parts = {labels.get("gpu_instance", ""): value for labels, value in page.find("gpu_slot_seconds_total", uuid=uuid)}
        total, since = sum(parts.values()), settled - session.watch.first
        session.report.judge(CHECK, f"accounts of the {len(instances)} instances of GPU {gpu} and of what is not divided",
                             f"{total:.2f} s in {len(parts)} slots of {since:.2f} s", LIMITS["lost"].allowed,
                             set(instances) <= parts.keys() and abs(total - since) <= LIMITS["lost"].bound)
        memory = page.sum("gpu_mig_memory_total_bytes", uuid=uuid)
        whole = page.value("gpu_memory_total_bytes", uuid=uuid) or 0
        session.report.judge(CHECK, f"memory of the instances of GPU {gpu}", f"{memory / 2**30:.1f} of {whole / 2**30:.1f} GiB",
                             "at most the GPU's", (memory > 0) == bool(instances) and memory <= whole)
