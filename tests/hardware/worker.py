"""A load on one GPU, as a program of its own: commands are lines of JSON on standard input, each is answered by one line.

    {"do": "start"}                                    opens CUDA on the only GPU that CUDA_VISIBLE_DEVICES shows
    {"do": "hold", "bytes": N}                         allocates device memory
    {"do": "work", "kind": KIND, "until": TIME, "duty": SHARE, "period": SECONDS, "offset": SECONDS}
        works until a time (seconds since 1970): answers the spans in which its kernels ran, by CUDA events, and their number.
        KIND: tensor (FP16 matrix product), fp32 (one without TF32), copy (device memory to device memory)

It ends with its standard input, however its parent ends. With `--stand-in` nothing is computed: it only lives and answers, and
the simulated driver says what it does.
"""

import json
import sys
import time

import duty

# Seconds of work between two synchronisations, so that the GPU always has more to do.
CHUNK = 0.05
SIZES = {"tensor": 8192, "fp32": 4096, "copy": 256 << 20}


class Load:
    """Kernels of PyTorch on a GPU."""

    def __init__(self):
        import torch

        self.torch = torch
        self.held, self.operands, self.each = None, {}, {}

    def start(self, _):
        torch = self.torch
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device; its CUDA may be newer than the driver")
        torch.cuda.init()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "cuda": torch.version.cuda}

    def hold(self, command):
        self.held = self.torch.empty(command["bytes"], dtype=self.torch.uint8, device="cuda")
        self.torch.cuda.synchronize()
        return {}

    def kernel(self, kind):
        """A function that launches one kernel; operands of one kind are kept at a time, so that small GPUs suffice."""
        torch = self.torch
        if kind not in self.operands:
            self.operands.clear()
            torch.cuda.empty_cache()
            size = SIZES[kind]
            if kind == "copy":
                self.operands[kind] = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
            else:
                type = torch.float16 if kind == "tensor" else torch.float32
                # Random bits draw the power that real work draws; zeros would not.
                made = [torch.randn(size, size, dtype=type, device="cuda") for _ in range(2)]
                self.operands[kind] = [*made, torch.empty(size, size, dtype=type, device="cuda")]
        if kind == "copy":
            source, target = self.operands[kind]
            return lambda: target.copy_(source)
        left, right, product = self.operands[kind]
        return lambda: torch.matmul(left, right, out=product)

    def measure(self, kernel, count):
        """Launches so many kernels on an idle GPU: when they began, and the seconds that they took by CUDA events."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        at = time.time()
        begin.record()
        for _ in range(count):
            kernel()
        end.record()
        end.synchronize()
        return at, begin.elapsed_time(end) / 1e3

    def work(self, command):
        kind = command["kind"]
        kernel = self.kernel(kind)
        bursts, count = [], 0
        if kind not in self.each:
            # The first launch loads libraries while the GPU waits, which events would count.
            kernel()
            self.torch.cuda.synchronize()
            at, took = self.measure(kernel, 2)
            bursts.append([at, at + took])
            count, self.each[kind] = 3, took / 2
        if command["duty"] >= 1:
            more, launched = self.saturate(kernel, kind, command["until"])
        else:
            more, launched = self.take_turns(kernel, kind, command)
        return {"bursts": bursts + more, "iterations": launched, "busy": sum(end - begin for begin, end in more), "warm_up": count}

    def saturate(self, kernel, kind, until):
        """Works without a pause: two chunks are always under way."""
        torch, events = self.torch, []
        mark = lambda: events.append(torch.cuda.Event(enable_timing=True)) or events[-1].record()
        count, chunk = 0, duty.iterations(CHUNK, self.each[kind])
        torch.cuda.synchronize()
        began = time.time()
        mark()
        while time.time() < until:
            for _ in range(chunk):
                kernel()
            count += chunk
            mark()
            if len(events) > 2:
                events[-2].synchronize()
        events[-1].synchronize()
        took = events[0].elapsed_time(events[-1]) / 1e3
        self.each[kind] = took / count
        return [[began, began + took]], count

    def take_turns(self, kernel, kind, command):
        """A burst in each period, as long as the duty says."""
        bursts, count = [], 0
        while (begin := duty.next_burst(time.time(), command["period"], command["offset"])) + command["period"] <= command["until"]:
            time.sleep(max(0, begin - time.time()))
            launches = duty.iterations(command["duty"] * command["period"], self.each[kind])
            at, took = self.measure(kernel, launches)
            bursts.append([at, at + took])
            count += launches
            # Clocks rise and fall with the load.
            self.each[kind] = took / launches
        time.sleep(max(0, command["until"] - time.time()))
        return bursts, count


class StandIn:
    """Lives as long as a load would."""

    def start(self, _):
        return {"device": "simulated", "torch": None, "cuda": None}

    def hold(self, _):
        return {}

    def work(self, command):
        time.sleep(max(0, command["until"] - time.time()))
        return {"bursts": [], "iterations": 0, "busy": 0, "warm_up": 0}


def main():
    load = StandIn() if "--stand-in" in sys.argv else Load()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(load, command["do"])(command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
