//! Every health rule: the condition that raises it, its verdict, and what clears it.

use std::sync::Arc;

use gpumeter::meter::health::{
    ClearedBy, HealthCondition, HealthInput, HealthInputs, Judge, RULES, Reachability, ReceivedEvents, Rule,
    kernel_line,
};
use gpumeter::model::catalogue::xid::{self, Class};
use gpumeter::model::{Absence, HealthState, Nanoseconds, Reading, Remedy, Stamp, Utc, Verdict};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

/// A GPU under a health judge: the judge, its time, and its inputs.
struct JudgedGpu {
    judge: Judge,
    now: Stamp,
    inputs: HealthInputs,
}

impl JudgedGpu {
    /// A healthy GPU of which everything is known.
    fn new() -> Self {
        let mut inputs = HealthInputs::new(Reachability::Reachable, 0);
        for source in gpumeter::meter::health::INPUT_SOURCES {
            inputs.set(source.input, [Ok(0)]);
        }
        let now = Stamp { boottime: Nanoseconds(SECOND), utc: Utc(1_800_000_000 * SECOND) };
        let mut gpu = Self { judge: Judge::default(), now, inputs };
        assert_eq!(gpu.judge().state, HealthState::Ok);
        gpu
    }

    fn judge(&mut self) -> Arc<Verdict> {
        self.judge_with(&ReceivedEvents::default())
    }

    fn judge_with(&mut self, received: &ReceivedEvents) -> Arc<Verdict> {
        self.judge.judge(self.now, &self.inputs, received)
    }

    /// Judges once per second for this many seconds.
    fn run(&mut self, seconds: u64) -> Arc<Verdict> {
        for _ in 0..seconds {
            self.now.boottime.0 += SECOND;
            self.now.utc.0 += SECOND;
            self.judge();
        }
        self.judge()
    }

    fn set(&mut self, input: HealthInput, value: i64) {
        self.inputs.set(input, [Ok(value)]);
    }

    fn xid(&mut self, code: u32) -> Arc<Verdict> {
        let mut received = ReceivedEvents::default();
        received.xids.insert(code, (1, None));
        self.judge_with(&received)
    }

    /// Makes the condition of the rule true, at its limit.
    fn raise(&mut self, rule: &Rule) -> Arc<Verdict> {
        match rule.when {
            HealthCondition::Is(presence) => self.inputs.presence = presence,
            HealthCondition::Positive(input) => self.set(input, 1),
            HealthCondition::Below(less, more) => {
                self.set(less, 17);
                self.set(more, 18);
            }
            HealthCondition::Grows(input, by, _) => self.set(input, by),
            HealthCondition::Xid(which) => {
                let code = (1..=174).find(|code| which(&xid::find(*code)));
                return self.xid(code.unwrap());
            }
            HealthCondition::Noticed(notice) => {
                let mut received = ReceivedEvents::default();
                received.notices.insert(notice, 1);
                return self.judge_with(&received);
            }
        }
        self.judge()
    }

    /// Makes the condition of the rule false again.
    fn clear(&mut self, rule: &Rule) {
        match rule.when {
            HealthCondition::Is(_) => self.inputs.presence = Reachability::Reachable,
            HealthCondition::Positive(input) => self.set(input, 0),
            HealthCondition::Below(less, more) => {
                self.set(less, 18);
                self.set(more, 18);
            }
            HealthCondition::Grows(..) | HealthCondition::Xid(_) | HealthCondition::Noticed(_) => {}
        }
    }
}

fn has(verdict: &Verdict, rule: &Rule) -> bool {
    verdict.reasons.iter().any(|reason| reason.rule == rule.name)
}

#[test]
fn every_rule_is_raised_by_its_condition_and_no_sooner() {
    for rule in RULES {
        let mut gpu = JudgedGpu::new();
        let mut verdict = gpu.raise(rule);
        if rule.after.0 > 0 {
            assert!(!has(&verdict, rule), "{}: too early", rule.name);
            verdict = gpu.run(rule.after.0 / SECOND - 1);
            assert!(!has(&verdict, rule), "{}: too early", rule.name);
            verdict = gpu.run(1);
        }
        assert!(has(&verdict, rule), "{}: {verdict:?}", rule.name);
        assert_eq!((verdict.state, verdict.remedy), (rule.state, rule.remedy), "{}", rule.name);
        let reason = verdict.reasons.iter().find(|reason| reason.rule == rule.name).unwrap();
        let begun = gpu.now.utc.0 - rule.after.0;
        assert_eq!(
            reason.since,
            Utc(begun),
            "{}: since its condition is true, not since it was reported",
            rule.name
        );
        assert!(!rule.what.is_empty(), "{}", rule.name);
    }
}

#[test]
fn every_rule_is_cleared_by_its_condition_and_no_sooner() {
    for rule in RULES {
        let mut gpu = JudgedGpu::new();
        gpu.raise(rule);
        gpu.run(rule.after.0 / SECOND);
        gpu.clear(rule);
        match rule.clears {
            ClearedBy::AtOnce => assert!(!has(&gpu.judge(), rule), "{}", rule.name),
            ClearedBy::Quiet(long) => {
                assert!(has(&gpu.run(long.0 / SECOND - 2), rule), "{}: too early", rule.name);
                assert!(!has(&gpu.run(3), rule), "{}: too late", rule.name);
            }
            ClearedBy::Reset => {
                assert!(has(&gpu.run(100_000), rule), "{}: it lasts", rule.name);
                gpu.inputs.reset_count += 1;
                assert!(!has(&gpu.judge(), rule), "{}: a reset clears it", rule.name);
            }
        }
        assert_eq!(gpu.judge().state, HealthState::Ok, "{}", rule.name);
    }
}

#[test]
fn a_condition_that_remains_after_a_reset_is_raised_again() {
    let mut gpu = JudgedGpu::new();
    gpu.xid(48);
    gpu.set(HealthInput::RowRemapPending, 1);
    assert_eq!(gpu.judge().state, HealthState::Failed);
    gpu.inputs.reset_count += 1;
    let verdict = gpu.judge();
    assert_eq!(verdict.reasons.iter().map(|reason| reason.rule).collect::<Vec<_>>(), ["row_remap_pending"]);
}

#[test]
fn absent_readings_neither_raise_nor_clear_a_verdict() {
    let mut gpu = JudgedGpu::new();
    gpu.set(HealthInput::RowRemapFailed, 1);
    gpu.judge();
    gpu.inputs = HealthInputs::new(Reachability::Reachable, 0);
    assert_eq!(gpu.run(1_000).remedy, Remedy::Replace);
    let mut blind = Judge::default();
    let verdict =
        blind.judge(gpu.now, &HealthInputs::new(Reachability::Reachable, 0), &ReceivedEvents::default());
    assert_eq!(verdict.state, HealthState::Ok);
}

#[test]
fn an_input_without_one_of_its_parts_may_raise_a_verdict_and_clears_none() {
    let mut gpu = JudgedGpu::new();
    let errors = |parts: [Reading; 2], gpu: &mut JudgedGpu| {
        gpu.inputs.set(HealthInput::EccUncorrectable, parts);
        let verdict = gpu.run(10);
        (verdict.state, verdict.reasons.first().map(|reason| reason.evidence.to_string()))
    };
    let degraded = |evidence: &str| (HealthState::Degraded, Some(evidence.to_owned()));
    let failed = Err(Absence::Failed);
    assert_eq!(errors([failed, Ok(0)], &mut gpu), (HealthState::Ok, None), "nothing is known to be wrong");
    assert_eq!(errors([failed, Ok(2)], &mut gpu), degraded("2 errors"), "the known part suffices");
    assert_eq!(errors([Ok(3), Ok(2)], &mut gpu), degraded("5 errors"));
    for part in [Ok(0), Ok(2), failed] {
        assert_eq!(errors([failed, part], &mut gpu), degraded("5 errors"), "{part:?}");
    }
    assert_eq!(errors([Err(Absence::NotSupported), Ok(0)], &mut gpu), (HealthState::Ok, None));
}

#[test]
fn a_part_that_fails_and_returns_is_no_growth_and_no_link_that_is_down() {
    let mut gpu = JudgedGpu::new();
    let links = |up: i64, expected: Reading, errors: Reading, gpu: &mut JudgedGpu| {
        gpu.inputs.set(HealthInput::LinksUp, [Ok(up)]);
        gpu.inputs.set(HealthInput::LinksExpected, [expected]);
        gpu.inputs.set(HealthInput::LinkErrors, [Ok(1), errors]);
        gpu.run(120).state
    };
    let known = (Ok(18), Ok(5));
    gpu.inputs.set(HealthInput::LinkErrors, [Ok(1), Ok(5)]);
    let mut other = Judge::default();
    other.judge(gpu.now, &gpu.inputs, &ReceivedEvents::default());
    gpu.judge = other;
    assert_eq!(links(18, known.0, known.1, &mut gpu), HealthState::Ok);
    assert_eq!(links(18, known.0, Err(Absence::Failed), &mut gpu), HealthState::Ok);
    assert_eq!(links(18, known.0, known.1, &mut gpu), HealthState::Ok, "the errors of before are not new");
    assert_eq!(links(17, Err(Absence::Failed), known.1, &mut gpu), HealthState::Ok, "expected is not known");
    assert_eq!(links(18, known.0, Ok(6), &mut gpu), HealthState::Degraded, "one more");
}

#[test]
fn a_recovery_action_clears_only_when_the_driver_reports_none() {
    let mut inputs = HealthInputs::new(Reachability::Reachable, 0);
    assert_eq!(inputs.driver_requests_nothing(), None);
    for input in [HealthInput::RecoveryReset, HealthInput::RecoveryReboot, HealthInput::RecoveryDrain] {
        inputs.set(input, [Ok(0)]);
    }
    assert_eq!(inputs.driver_requests_nothing(), None);
    inputs.set(HealthInput::RecoveryDrainAndReset, [Ok(0)]);
    assert_eq!(inputs.driver_requests_nothing(), Some(true));
    inputs.set(HealthInput::RecoveryReset, [Ok(1)]);
    assert_eq!(inputs.driver_requests_nothing(), Some(false));
}

#[test]
fn a_gpu_without_readings_is_unknown_unless_it_has_failed() {
    let mut gpu = JudgedGpu::new();
    gpu.inputs.presence = Reachability::Unresponsive;
    assert_eq!(gpu.judge().state, HealthState::Unknown);
    assert_eq!(gpu.xid(119).state, HealthState::Failed);
}

#[test]
fn a_counter_that_decreased_is_not_growth() {
    let mut gpu = JudgedGpu::new();
    gpu.set(HealthInput::PcieReplays, 10);
    gpu.judge();
    gpu.set(HealthInput::PcieReplays, 0);
    gpu.judge();
    // Fifteen in a quarter of an hour count as growth, fourteen do not.
    gpu.set(HealthInput::PcieReplays, 14);
    assert_eq!(gpu.judge().state, HealthState::Ok);
    gpu.set(HealthInput::PcieReplays, 15);
    assert_eq!(gpu.judge().state, HealthState::Degraded);
}

#[test]
fn slow_growth_of_replays_raises_no_verdict() {
    let mut gpu = JudgedGpu::new();
    for count in 1..100 {
        gpu.set(HealthInput::PcieReplays, count);
        assert_eq!(gpu.run(120).state, HealthState::Ok, "{count}");
    }
}

#[test]
fn a_short_throttle_change_neither_raises_nor_clears_a_verdict() {
    let mut gpu = JudgedGpu::new();
    for _ in 0..20 {
        gpu.set(HealthInput::HwThermal, 1);
        assert_eq!(gpu.run(30).state, HealthState::Ok);
        gpu.set(HealthInput::HwThermal, 0);
        gpu.run(30);
    }
    gpu.set(HealthInput::HwThermal, 1);
    gpu.judge();
    assert_eq!(gpu.run(60).state, HealthState::Degraded);
    for _ in 0..20 {
        gpu.set(HealthInput::HwThermal, 0);
        gpu.run(100);
        gpu.set(HealthInput::HwThermal, 1);
        assert_eq!(gpu.run(10).state, HealthState::Degraded);
    }
}

#[test]
fn the_evidence_counts_codes_and_names_the_instance() {
    let mut gpu = JudgedGpu::new();
    gpu.xid(48);
    let mut received = ReceivedEvents::default();
    received.xids.insert(48, (2, Some(3)));
    received.xids.insert(95, (1, None));
    let verdict = gpu.judge_with(&received);
    assert_eq!(
        &*verdict.reasons.first().unwrap().evidence,
        "XID 48 (uncorrectable double-bit memory error) 3 times, last on GPU instance 3; \
         XID 95 (uncontained memory error) once"
    );
}

#[test]
fn every_xid_that_is_not_informational_has_exactly_one_rule() {
    // XIDs from 174 on are newer than the table.
    for code in 1..=200 {
        let class = xid::find(code).class;
        let silent = class == Class::Information;
        let rules = RULES
            .iter()
            .filter(|rule| matches!(rule.when, HealthCondition::Xid(which) if which(&xid::find(code))));
        assert_eq!(rules.count(), usize::from(!silent), "XID {code}");
    }
}

#[test]
fn an_unknown_xid_is_reported_without_a_verdict() {
    let verdict = JudgedGpu::new().xid(1_234);
    assert_eq!((verdict.state, verdict.remedy), (HealthState::Ok, Remedy::ContactSupport));
    assert_eq!(&*verdict.reasons.first().unwrap().evidence, "XID 1234 (newer than this table) once");
}

#[test]
fn an_unused_xid_is_reported_without_a_verdict() {
    let disused: Vec<u32> = (1..=173).filter(|code| xid::find(*code).disused).collect();
    assert!(disused.contains(&47) && disused.contains(&123));
    for code in disused {
        let verdict = JudgedGpu::new().xid(code);
        assert_eq!((verdict.state, verdict.reasons.len()), (HealthState::Ok, 1), "XID {code}: {verdict:?}");
    }
    // An encoder's exception is caused by its application, as a decoder's is.
    for code in [47, 142, 68] {
        assert_eq!(JudgedGpu::new().xid(code).state, HealthState::Ok, "XID {code}");
    }
}

#[test]
fn the_verdict_on_an_xid_asks_for_the_action_that_the_metrics_name() {
    for code in 1..=200 {
        let action = match xid::find(code).action {
            xid::Action::Ignore => Remedy::None.name(),
            action => action.name(),
        };
        assert_eq!(JudgedGpu::new().xid(code).remedy.name(), action, "XID {code}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_kernel_log_record_makes_the_parser_panic(record in any::<String>(), tail in any::<String>()) {
        kernel_line::parse(&record);
        kernel_line::parse(&format!("NVRM: Xid ({record}"));
        kernel_line::parse(&format!("NVRM: Xid (PCI:0000:0f:00 {record}): {tail}"));
        let line = format!("NVRM: Xid (PCI:0000:0f:00): 13, {record}");
        prop_assert_eq!(kernel_line::parse(&line).map(|read| read.xid), Some(13), "{}", line);
    }

    #[test]
    fn the_verdict_is_that_of_the_worst_reason(
        steps in prop::collection::vec((0..gpumeter::meter::health::INPUT_SOURCES.len(), prop::option::of(any::<i64>()), 0..180_u32, any::<u64>(), 0..2_u64), 1..60),
    ) {
        let (mut judge, mut inputs, mut now) = (Judge::default(), HealthInputs::new(Reachability::Reachable, 0), Stamp::default());
        for (input, value, xid, count, resets) in steps {
            inputs.set(gpumeter::meter::health::INPUT_SOURCES[input].input, [value.ok_or(Absence::Failed)]);
            inputs.reset_count = inputs.reset_count.wrapping_add(resets);
            now.boottime.0 += 7 * SECOND;
            let mut received = ReceivedEvents::default();
            received.xids.insert(xid, (count, None));
            let verdict = judge.judge(now, &inputs, &received);
            let worst = verdict.reasons.iter().map(|reason| (reason.state, reason.remedy)).max();
            prop_assert_eq!(worst.unwrap_or((HealthState::Ok, Remedy::None)), (verdict.state, verdict.remedy));
        }
    }
}
