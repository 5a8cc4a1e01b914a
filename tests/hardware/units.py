"""Unit checks of this suite's own arithmetic, parsers and tables; `.ci/hardware --simulated` begins with them."""

import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import check_account
import check_cost
import check_page
import check_recording
import duty
import node
import pages
import programs
import readers
import report
import session
import tolerances
import worker

# In the form of what `nvidia-smi -q -x` of driver 580 prints; the values are made up.
SAMPLE = Path(__file__).parent / "samples/nvidia-smi-580.xml"
GPU = {"uuid": "GPU-0"}


class FakeGpu:
    """A clock and a GPU that works at it: what worker.py uses of `time` and of PyTorch, so that bursts can be counted exactly."""

    def __init__(self, kernel):
        self.now, self.free, self.kernel, self.launched = 1_000.2, 0.0, kernel, 0
        self.cuda = SimpleNamespace(Event=lambda enable_timing: FakeEvent(self), synchronize=self.synchronize, empty_cache=lambda: None)

    def time(self):
        self.now += 1e-4  # so that loops which only look at the clock end
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def launch(self):
        self.launched += 1
        self.free = max(self.free, self.now) + self.kernel

    def synchronize(self):
        self.now = max(self.now, self.free)


class FakeEvent:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = max(self.gpu.now, self.gpu.free)

    def synchronize(self):
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


def load(gpu):
    """worker.Load on a fake GPU."""
    made = object.__new__(worker.Load)
    made.torch, made.each, made.held, made.operands = gpu, {}, None, {}
    made.kernel = lambda kind: gpu.launch
    return made


class Loads(unittest.TestCase):
    def test_a_duty_of_30_percent_works_for_30_percent_of_each_period(self):
        gpu = FakeGpu(0.0061)
        with mock.patch.object(worker, "time", gpu):
            answer = load(gpu).work({"kind": "tensor", "until": 1_021.0, "duty": 0.3, "period": 1.0, "offset": 0.0})
        bursts = [burst for burst in answer["bursts"] if burst[0] >= 1_001]
        self.assertEqual(len(bursts), 20)
        self.assertAlmostEqual(duty.busy_within(bursts, 1_001, 1_021), 20 * 49 * 0.0061, 3)
        self.assertTrue(all(abs(burst[0] % 1) < 0.01 for burst in bursts), bursts)

    def test_two_loads_that_take_turns_never_work_at_one_time(self):
        spans = []
        for share, offset in ((0.3, 0.0), (0.6, 0.35)):
            gpu = FakeGpu(0.004)
            with mock.patch.object(worker, "time", gpu):
                spans += load(gpu).work({"kind": "tensor", "until": 1_010, "duty": share, "period": 1.0, "offset": offset})["bursts"][1:]
        spans.sort()
        self.assertTrue(all(before[1] <= after[0] for before, after in zip(spans, spans[1:])), spans)

    def test_a_saturating_load_counts_its_kernels_by_the_time_of_the_gpu(self):
        gpu = FakeGpu(0.0016)
        with mock.patch.object(worker, "time", gpu):
            answer = load(gpu).work({"kind": "tensor", "until": 1_005, "duty": 1, "period": 1, "offset": 0})
        self.assertAlmostEqual(answer["iterations"] / answer["busy"], 1 / 0.0016, 0)
        self.assertEqual(gpu.launched, answer["iterations"] + answer["warm_up"])
        self.assertGreater(answer["busy"], 4.5)


class Arithmetic(unittest.TestCase):
    def test_bursts_count_for_the_part_that_lies_within_a_span(self):
        self.assertAlmostEqual(duty.busy_within([[0, 1], [2, 4], [9, 10]], 0.5, 3), 1.5)

    def test_a_counter_is_interpolated_between_its_samples(self):
        samples = [(10, 0.0), (12, 1.0), (20, 1.0)]
        self.assertEqual([duty.at(samples, time) for time in (5, 11, 15, 30)], [0.0, 0.5, 1.0, 1.0])

    def test_an_account_is_settled_at_whole_windows_though_its_first_sample_is_seconds_off(self):
        self.assertEqual(duty.settled_until(1_000_003.7, 40.2), 1_000_050 - 1_000_050 % 15)
        self.assertEqual(duty.settled_until(1_000_003.7, 0), 1_000_003.7)

    def test_the_states_around_a_phase_are_the_last_before_and_the_first_after_it(self):
        history = [(15, "a"), (30, "b"), (45, "c"), (60, "d")]
        self.assertEqual(duty.around(history, 31, 44), ((30, "b"), (45, "c")))
        self.assertEqual(duty.around(history, 10, 44), ((15, "a"), (45, "c")))
        self.assertIsNone(duty.around(history, 31, 61))

    def test_a_slow_down_is_the_median_of_pairs(self):
        lost, scatter = duty.slowdown([100, 100, 102, 100, 98], [99, 99, 50, 100, 98])
        self.assertAlmostEqual(lost, 0.01)
        self.assertAlmostEqual(scatter, 0.04)


class Readers(unittest.TestCase):
    def test_nvidia_smi_is_read_in_the_units_of_the_page(self):
        found = {(family, tuple(sorted(labels.items()))): value for family, labels, value in readers.of_smi(SAMPLE.read_text())}
        value = lambda family, **labels: found.get((family, tuple(sorted({**GPU, **labels}.items()))))
        self.assertEqual(value("gpu_memory_total_bytes"), 81559 * 2**20)
        self.assertEqual(value("gpu_utilization_ratio"), 0.07)
        self.assertEqual(value("gpu_power_watts"), 69.84)
        self.assertEqual(value("gpu_power_limit_watts", limit="enforced"), 700)
        self.assertEqual(value("gpu_clock_hertz", clock="memory"), 2_619_000_000)
        self.assertEqual(value("gpu_info", board_part="692-2G520-0200-000"), 1)
        self.assertEqual(value("gpu_pcie_link_width"), 16)
        self.assertEqual(value("gpu_performance_state"), 0)
        self.assertEqual(value("gpu_ecc_errors_total", type="uncorrected", location="sram"), 5)
        self.assertEqual(value("gpu_ecc_errors_total", type="corrected", location="dram"), 4)
        self.assertEqual((value("gpu_row_remap_pending"), value("gpu_row_remap_failure")), (0, 1))
        self.assertEqual(value("gpu_process_memory_bytes", pid="4211"), 2**30)
        self.assertEqual(value("gpu_info", model="NVIDIA H100 80GB HBM3"), 1)
        self.assertFalse([key for key in found if key[0] == "gpu_fan_speed_ratio" or ("pid", "77") in key[1]], "N/A is no number")

    def test_a_page_keeps_labels_with_escapes_and_values_without_labels(self):
        page = pages.Page('# HELP a b\na{x="1\\"2,y=",z="q"} 3\nb 4.5\ngpu_slot_seconds_total{uuid="u"} 1\ngpu_up{uuid="u"} 1\n')
        self.assertEqual(page.find("a", z="q"), [({"x": '1"2,y=', "z": "q"}, 3.0)])
        self.assertEqual(page.value("b"), 4.5)
        self.assertEqual(list(page.device()), ["gpu_up"])


class Comparisons(unittest.TestCase):
    PAGE = pages.Page('gpu_temperature_celsius{gpu="0",uuid="GPU-0",sensor="gpu"} 40\n'
                      'gpu_unsupported{gpu="0",uuid="GPU-0",family="gpu_fan_speed_ratio",reason="not_supported"} 1\n')

    def compared(self, *values, family="gpu_temperature_celsius", **labels):
        reading = lambda value: [[family, {**GPU, **labels}, value]]
        return check_page.compare([([reading(low), reading(high)], self.PAGE) for low, high in values])

    def test_a_value_between_two_readings_and_their_tolerance_agrees(self):
        self.assertEqual(len(self.compared((38, 39), sensor="gpu").agreed), 1)

    def test_a_value_beyond_the_tolerance_differs_and_is_named(self):
        result = self.compared((30, 37.5), sensor="gpu")
        self.assertEqual(list(result.wrong.values()),
                         ["gpu_temperature_celsius{sensor=gpu, uuid=GPU-0} is 40 on the page, read as 30 to 37.5"])

    def test_a_value_that_moves_may_disagree_in_two_of_five_looks(self):
        right, wrong = (40, 40), (50, 50)
        self.assertFalse(self.compared(right, wrong, right, wrong, right, sensor="gpu").wrong)
        self.assertTrue(self.compared(right, wrong, wrong, wrong, right, sensor="gpu").wrong)

    def test_a_series_that_only_another_reader_has_differs_unless_the_page_says_why(self):
        self.assertIn("is not on the page", self.compared((60, 60), sensor="memory").summary())
        said = self.compared((0.3, 0.3), family="gpu_fan_speed_ratio", fan="0")
        self.assertEqual((len(said.agreed), len(said.wrong)), (0, 0))

    def test_families_and_series_of_a_replay_are_compared_both_ways(self):
        live = {"gpu_up": {(("uuid", "a"),)}, "gpu_x": {(("uuid", "a"),)}}
        played = {"gpu_up": {(("uuid", "a"),), (("uuid", "b"),)}}
        self.assertEqual(check_recording.differences(live.keys(), played.keys()), "; 1 only live: gpu_x")
        live, played = check_recording.names(live, played), check_recording.names(played)
        self.assertIn("1 only in the replay", check_recording.differences(live, played))


class FakeWatch:
    """States of an account and pages as check_account reads them, and a truth of bursts."""

    uuid = "GPU-0"

    def __init__(self, states, bursts):
        self.history = [(settled, pages.Page(text)) for settled, text in states]
        self.pages, self.since, self.truth = [], 0, session.Truth()
        self.truth.bursts = bursts

    used = session.Watch.used


class Accounts(unittest.TestCase):
    SPANS = {"duty": (16, 29), "idle": (31, 44), "short": (46, 50)}

    def judged(self, used):
        texts = [f'gpu_tenant_used_seconds_total{{tenant="bob",uuid="GPU-0"}} {value}\n' for value in used]
        states = [(15 * (number + 1), text) for number, text in enumerate(texts)]
        watch = FakeWatch(states, {"low": [[16, 20]], "high": [[21, 28]], "short": [[46, 48]]})
        world = SimpleNamespace(watch=watch, report=report.Report(None, True), pids={}, spans=self.SPANS, node=SimpleNamespace(changes=[]))
        with mock.patch("builtins.print"):
            check_account.used_time(world, self.SPANS)
        return [line.verdict for line in world.report.lines[:3]]

    def test_use_that_agrees_with_the_loads_own_clocks_is_ok(self):
        self.assertEqual(self.judged([0, 11.2, 11.3, 13.1]), ["ok", "ok", "ok"])

    def test_use_that_is_lost_in_a_load_differs(self):
        self.assertEqual(self.judged([0, 9.0, 9.0, 11.0]), ["differs", "ok", "ok"])

    def test_use_of_a_process_that_only_holds_memory_differs(self):
        self.assertEqual(self.judged([0, 11.0, 12.0, 14.0]), ["ok", "differs", "ok"])

    def test_a_short_process_that_is_not_seen_differs(self):
        self.assertEqual(self.judged([0, 11.0, 11.0, 11.0]), ["ok", "ok", "differs"])

    def test_two_loads_of_different_tenants_are_compared_one_by_one(self):
        line = lambda name, value: f'gpu_tenant_used_seconds_total{{tenant="{name}",uuid="GPU-0"}} {value}\n'
        owned = "".join(f'gpu_process_memory_bytes{{uuid="GPU-0",pid="{pid}",tenant="{name}"}} 1\n' for pid, name in ((1, "a"), (2, "b")))
        for used, verdict in (((4.1, 7.1), "ok"), ((6.0, 5.0), "differs")):
            watch = FakeWatch([(15, line("a", 0)), (30, line("a", used[0]) + line("b", used[1]))], {"low": [[16, 20]], "high": [[21, 28]]})
            watch.pages = [(20, pages.Page(owned))]
            world = SimpleNamespace(watch=watch, report=report.Report(None, True), pids={"low": 1, "high": 2})
            with mock.patch("builtins.print"):
                check_account.tenant_time(world, self.SPANS)
            self.assertEqual([one.verdict for one in world.report.lines], [verdict])


class Tables(unittest.TestCase):
    def test_the_document_has_the_tolerances_of_the_code(self):
        self.assertEqual(tolerances.written(), tolerances.page(), "python3 tests/hardware/tolerances.py --write")

    def test_a_verdict_over_the_simulated_driver_says_so(self):
        line = report.Line(1, "what", "found", "", report.OK, True)
        self.assertIn("  ok (simulated)  ", report.table([line]))
        self.assertEqual(report.mark(line._replace(verdict=report.NOT_POSSIBLE)), "not possible here")

    def test_what_is_kept_has_at_most_ten_megabytes_and_always_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for name in ("table.txt", "recording.jsonl", "other.bin", "small.txt"):
                (folder / name).write_bytes(os.urandom(4_500_000) if name != "small.txt" else b"small")
            self.assertEqual(report.tidy(folder), ["other.bin.gz"])
            self.assertEqual({path.name for path in report.files(folder)}, {"table.txt.gz", "recording.jsonl.gz", "small.txt"})

    def test_the_agent_is_measured_only_where_it_runs(self):
        watched = check_cost.Watched()
        watched.begin(None)
        watched.end(None)
        self.assertEqual(watched.seconds, 0)


class Ends(unittest.TestCase):
    def test_everything_that_was_started_ends_also_what_ignores_sigterm(self):
        with tempfile.TemporaryDirectory() as folder:
            started = programs.Programs(Path(folder))
            mild = started.start("mild", ["sleep", "600"])
            stubborn = started.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done"], reads=True)
            stubborn.process.stdout.readline()
            started.end(stubborn, 0.2)
            started.end_all()
            self.assertFalse(mild.alive() or stubborn.alive())
            self.assertEqual(started.running, [])

    def test_a_program_that_is_not_there_is_not_possible(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(report.NotPossible):
            programs.Programs(Path(folder)).start("none", ["/does/not/exist"])
        self.assertFalse(node.works(["/does/not/exist"]))


if __name__ == "__main__":
    unittest.main()
