//! The schedule of process reads, tick by tick, without a driver.

use super::*;

const NONE: ListsDue = ListsDue { compute: false, graphics: false };
const COMPUTE: ListsDue = ListsDue { compute: true, graphics: false };
const BOTH: ListsDue = ListsDue { compute: true, graphics: true };

fn known(compute: &[u32], graphics: &[u32]) -> ListedPids {
    let set = |pids: &[u32]| Some(pids.iter().copied().collect());
    ListedPids { compute: set(compute), graphics: set(graphics), is_compute_refused: false }
}

fn samples(pids: &[u32]) -> Vec<ProcessSample> {
    let of = |pid: &u32| ProcessSample { pid: *pid, window: 1, sm: 50, memory: None, encoder: 0, decoder: 0 };
    pids.iter().map(of).collect()
}

/// The schedule of a GPU whose lists were read while that much memory was in use.
fn after_lists(memory: u64) -> ProcessSchedule {
    let mut schedule = ProcessSchedule::new(false);
    schedule.memory.set(Some(Ok(vec![memory])));
    schedule.note_tick(&state(0), BOTH, BOTH);
    schedule
}

fn state(second: u64) -> TickState<'static> {
    TickState {
        begun: Stamp { boottime: Nanoseconds::from_seconds(second), ..Stamp::default() },
        medium: second.is_multiple_of(5),
        slow: second.is_multiple_of(60),
        read: second.is_multiple_of(5),
        all: false,
        may_have_samples: true,
        shown: false,
        busy: Some(true),
        samples: None,
    }
}

/// A tick in which these pids worked and that much memory was in use; returns the lists read, and whether samples were.
fn tick_of(
    schedule: &mut ProcessSchedule,
    state: TickState<'_>,
    (pids, memory): (&[u32], Option<u64>),
    known: &ListedPids,
) -> (ListsDue, bool) {
    let state = TickState { busy: Some(!pids.is_empty()), ..state };
    schedule.listed = known.clone();
    let answer = memory.map(|used| vec![used]).ok_or(Absence::NotSupported);
    let answer = schedule.needs_memory(&state).then_some(answer);
    schedule.memory.set(answer);
    let samples_read = state.may_have_samples && schedule.needs_samples(&state);
    let samples = samples(pids);
    let state = TickState { samples: samples_read.then_some(&*samples), ..state };
    let lists = schedule.select_lists(&state);
    schedule.note_tick(&state, lists, lists);
    (lists, samples_read)
}

fn tick(schedule: &mut ProcessSchedule, second: u64, pids: &[u32], known: &ListedPids) -> ListsDue {
    tick_of(schedule, state(second), (pids, Some(1)), known).0
}

fn count(reads: impl Iterator<Item = ListsDue>) -> (usize, usize) {
    reads.fold((0, 0), |(compute, graphics), lists| {
        (compute + usize::from(lists.compute), graphics + usize::from(lists.graphics))
    })
}

#[test]
fn while_memory_is_unchanged_lists_are_read_with_the_slow_tier_and_graphics_with_every_fifth() {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[]));
    let reads = (1..=600).map(|second| tick(&mut schedule, second, &[7, 8], &known));
    assert_eq!(count(reads), (10, 2));
}

#[test]
fn where_memory_moves_among_several_lists_have_their_turn_with_the_medium_and_the_slow_tier() {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[]));
    let reads =
        (1..=120).map(|second| tick_of(&mut schedule, state(second), (&[7, 8], Some(second)), &known).0);
    assert_eq!(count(reads), (24, 2));
}

#[test]
fn lists_at_full_stretch_come_every_minute_and_graphics_every_five() {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[]));
    schedule.stretch(64);
    let reads: Vec<_> = (1..=1_200)
        .map(|second| tick_of(&mut schedule, state(second), (&[7, 8], Some(second)), &known).0)
        .collect();
    let longest = |of: fn(&ListsDue) -> bool| {
        reads.split(of).map(|between| between.len() + 1).max().unwrap_or(usize::MAX)
    };
    assert_eq!(longest(|lists| lists.compute), 60);
    assert!(longest(|lists| lists.graphics) <= 300);
}

#[test]
fn a_pid_that_no_list_names_is_looked_for_at_once_and_only_once() {
    let (mut schedule, known) = (after_lists(1), known(&[6, 7], &[]));
    assert_eq!(tick(&mut schedule, 1, &[6, 7], &known), NONE);
    assert_eq!(tick(&mut schedule, 2, &[6, 7, 8], &known), COMPUTE);
    assert_eq!(tick(&mut schedule, 3, &[6, 7, 8], &known), NONE);
}

#[test]
fn a_list_that_exceeds_the_calls_of_a_tick_is_read_in_the_next_one() {
    let (mut schedule, known) = (after_lists(1), known(&[6, 7], &[]));
    let samples = samples(&[6, 7, 8]);
    let first = TickState { samples: Some(&samples), ..state(1) };
    schedule.listed = known.clone();
    assert_eq!(schedule.select_lists(&first), COMPUTE);
    schedule.note_tick(&first, COMPUTE, NONE);
    assert_eq!(tick(&mut schedule, 2, &[6, 7], &known), COMPUTE);
    assert_eq!(
        tick(&mut schedule, 3, &[6, 7, 8], &known),
        COMPUTE,
        "a postponed list leaves the pid unknown"
    );
}

#[test]
fn a_process_that_stops_having_samples_is_looked_up_in_the_next_tick() {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[9]));
    tick(&mut schedule, 1, &[7, 8, 9], &known);
    assert_eq!(tick(&mut schedule, 2, &[7, 9], &known), COMPUTE);
    assert_eq!(tick(&mut schedule, 3, &[7, 9], &known), NONE, "it idles");
    assert_eq!(tick(&mut schedule, 4, &[7], &known), ListsDue { compute: false, graphics: true });
}

#[test]
fn an_empty_gpu_is_listed_when_memory_changes_and_a_busy_one_without_processes_once() {
    let (mut schedule, nobody) = (after_lists(1), known(&[], &[]));
    assert_eq!(tick(&mut schedule, 1, &[], &nobody), NONE);
    assert_eq!(tick_of(&mut schedule, state(2), (&[], Some(9)), &nobody).0, COMPUTE);
    assert!(schedule.needs_graphics_too(&state(2)), "who is not on the compute list may be on another");
    let busy_tick = |schedule: &mut ProcessSchedule, second| {
        schedule.memory.set(Some(Ok(vec![9])));
        let state = TickState { samples: Some(&[]), ..state(second) };
        let lists = schedule.select_lists(&state);
        schedule.note_tick(&state, lists, lists);
        lists
    };
    assert_eq!(busy_tick(&mut schedule, 3), ListsDue { compute: false, graphics: true });
    assert_eq!(busy_tick(&mut schedule, 4), NONE);
}

#[test]
fn samples_are_not_read_on_an_idle_gpu() {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[]));
    let mut samples_read =
        |second, pids: &[u32]| tick_of(&mut schedule, state(second), (pids, Some(1)), &known).1;
    assert_eq!(
        [samples_read(1, &[7]), samples_read(2, &[]), samples_read(3, &[]), samples_read(4, &[])],
        [true, true, false, false]
    );
    assert!(samples_read(6, &[7]));
}

#[test]
fn samples_of_a_single_process_are_read_with_the_medium_tier_or_when_memory_changes() {
    let (mut schedule, known) = (after_lists(1), known(&[7], &[]));
    let mut seen = |second, memory| tick_of(&mut schedule, state(second), (&[7], Some(memory)), &known);
    assert_eq!(
        [seen(1, 1), seen(4, 1), seen(5, 1), seen(6, 1)].map(|(_, samples_read)| samples_read),
        [false, false, true, false]
    );
    assert_eq!(seen(7, 2), (COMPUTE, true));
    assert_eq!(seen(8, 2), (NONE, true), "the graphics list is of other memory");
    assert_eq!(seen(9, 3), (NONE, true), "it allocates: the list waits");
    assert_eq!(seen(10, 3), (COMPUTE, true));
    assert_eq!(seen(60, 3), (BOTH, true));
    assert_eq!(seen(61, 3), (NONE, false));
}

#[test]
fn deferred_samples_are_dropped_only_if_nothing_ran_or_a_process_may_have_come() {
    let (mut schedule, known) = (after_lists(1), known(&[7], &[]));
    let mut anew = |second, pids: &[u32], memory| {
        tick_of(&mut schedule, state(second), (pids, Some(memory)), &known);
        schedule.drops_deferred_samples(&TickState { busy: Some(!pids.is_empty()), ..state(second) })
    };
    assert!(!anew(1, &[7], 1), "an unlisted process may work, too");
    assert!(!anew(2, &[], 1), "its last sample is yet to come");
    assert!(anew(5, &[], 1) && anew(6, &[], 1));
    assert!(!anew(7, &[8], 1));
    assert!(!anew(8, &[], 1), "it worked since");
    schedule.memory.set(Some(Ok(vec![2])));
    assert!(schedule.drops_deferred_samples(&state(9)));
}

#[test]
fn memory_that_changes_on_an_empty_gpu_costs_no_more_lists_than_the_stretch_allows() {
    let (mut schedule, nobody) = (after_lists(0), known(&[], &[]));
    schedule.stretch(8);
    let mut lists = |second, memory| tick_of(&mut schedule, state(second), (&[], Some(memory)), &nobody).0;
    assert_eq!((lists(1, 0), lists(2, 1)), (NONE, COMPUTE), "the first move is followed at once");
    // Beside every eighth tick, every eighth turn of the medium tier, and the first move after it.
    assert!(count((3..60).map(|second| lists(second, second))).0 <= 57_usize.div_ceil(8) + 4);
}

#[test]
fn samples_that_are_published_or_name_unlisted_pids_are_always_read() {
    let (mut schedule, known) = (after_lists(1), known(&[7], &[]));
    let shown = TickState { shown: true, ..state(1) };
    assert!(tick_of(&mut schedule, shown, (&[7], Some(1)), &known).1);
    assert!(!tick_of(&mut schedule, state(2), (&[7], Some(1)), &known).1);
    let partial = ListedPids { is_compute_refused: true, ..self::known(&[], &[7]) };
    assert!(tick_of(&mut schedule, state(3), (&[7], Some(1)), &partial).1, "who computes is on no list");
    tick_of(&mut schedule, state(5), (&[7, 8], Some(1)), &known);
    assert!(tick_of(&mut schedule, state(6), (&[7], Some(1)), &known).1);
}

#[test]
fn under_presence_every_change_of_memory_is_followed_while_the_driver_has_time() {
    let mut schedule = after_lists(1);
    schedule.presence = true;
    let known = known(&[7, 8], &[]);
    let mut lists =
        |second, memory| tick_of(&mut schedule, state(second), (&[], Some(memory)), &known).0.compute;
    assert_eq!([1, 2, 2, 3].map(|memory| lists(memory + 10, memory)), [false, true, false, true]);
    assert!(lists(15, 3), "one may have taken another's place");
}

#[test]
fn under_presence_memory_that_keeps_changing_costs_what_the_stretch_allows() {
    let mut schedule = after_lists(1);
    schedule.presence = true;
    schedule.stretch(8);
    let known = known(&[7, 8], &[]);
    let reads = (61..120)
        .filter(|second| tick_of(&mut schedule, state(*second), (&[], Some(*second)), &known).0.compute);
    let reads = reads.count();
    // Beside every eighth tick, every eighth turn of the medium tier, and the first move after it.
    assert!((8..=59_usize.div_ceil(8) + 4).contains(&reads), "{reads}");
}

/// Which of these ticks read the compute list, where samples do not show who works.
fn without_samples(stretch: u32, seconds: &[(u64, u64)]) -> Vec<bool> {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[]));
    schedule.stretch(stretch);
    let lists = |(second, memory): &(u64, u64)| {
        let state = TickState { may_have_samples: false, ..state(*second) };
        tick_of(&mut schedule, state, (&[], Some(*memory)), &known).0.compute
    };
    seconds.iter().map(lists).collect()
}

#[test]
fn without_samples_every_change_of_memory_is_followed() {
    let reads = without_samples(1, &[(11, 1), (12, 2), (12, 2), (13, 3), (15, 3)]);
    assert_eq!(reads, [false, true, false, true, true], "one may have taken another's place, at last");
}

#[test]
fn without_samples_memory_that_keeps_changing_costs_what_the_stretch_allows() {
    let churn: Vec<(u64, u64)> = (61..120).map(|second| (second, second)).collect();
    assert_eq!(without_samples(1, &churn).iter().filter(|lists| **lists).count(), 59);
    // Beside every eighth tick, every eighth turn of the medium tier, and the first move after it.
    let reads = without_samples(8, &churn).iter().filter(|lists| **lists).count();
    assert!((8..=59_usize.div_ceil(8) + 4).contains(&reads), "{reads}");
}

#[test]
fn an_event_reads_the_compute_list_only_and_keeps_the_unlisted_pids() {
    let (mut schedule, known) = (after_lists(1), known(&[7, 8], &[]));
    assert_eq!(tick(&mut schedule, 1, &[7, 8, 9], &known), COMPUTE);
    let reads = (2..60).map(|second| {
        let state = TickState { all: second % 5 == 2, ..state(second) };
        tick_of(&mut schedule, state, (&[7, 8, 9], Some(1)), &known).0
    });
    assert_eq!(count(reads), (12, 0));
}

#[test]
fn without_memory_an_empty_gpu_and_presence_are_listed_in_every_tick() {
    let mut schedule = ProcessSchedule::new(false);
    let nobody = known(&[], &[]);
    let mut lists = |second| tick_of(&mut schedule, state(second), (&[], None), &nobody).0.compute;
    assert!((1..20).all(&mut lists));
    let by_presence = |stretch| {
        let mut schedule = ProcessSchedule::new(true);
        schedule.stretch(stretch);
        let known = known(&[7], &[]);
        let lists = |second: &u64| tick_of(&mut schedule, state(*second), (&[7], None), &known).0.compute;
        (1..20).filter(lists).count()
    };
    assert_eq!(by_presence(1), 19);
    assert!((3..=5).contains(&by_presence(8)), "{}", by_presence(8));
}

#[test]
fn a_list_that_failed_for_now_is_read_again_alone() {
    let mut schedule = after_lists(1);
    let failed = ListedPids { compute: None, ..known(&[], &[9]) };
    assert_eq!(tick(&mut schedule, 1, &[], &failed), COMPUTE);
}
