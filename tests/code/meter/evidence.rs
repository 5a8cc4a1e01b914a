//! Evidence from frames to the ledger, with kills in between.

use gpumeter::accounting::ledger::Retention;
use gpumeter::model::{AMOUNTS, Amount, AmountKind, Holder, Nanoseconds};

use super::frame_builder::FrameBuilder;
use super::world::World;

/// Alice's processes on a GPU that is busy for half the time.
fn work(frame: FrameBuilder) -> FrameBuilder {
    frame.process(7, 100).busy(50).gpm(35, 9)
}

fn start() -> World {
    let mut world = World::new(&["alice"]);
    world.identify(7, "alice");
    world
}

/// The columns of a shape, summed.
const SHAPE: &str = "from_0_ns + from_1_ns + from_5_ns + from_10_ns + from_20_ns + from_30_ns + from_40_ns + from_50_ns + from_60_ns
    + from_70_ns + from_80_ns + from_90_ns + shared_ns + unknown_ns";

/// What a table has of each user, by these columns.
fn sums(world: &World, table: &str, columns: &str) -> String {
    world.query(&format!(
        "SELECT group_concat(sums, ', ') FROM (SELECT concat_ws(' ', holder.name, {columns}) AS sums FROM {table}
         JOIN holder ON holder.id = holder WHERE holder.name LIKE 'user:%' GROUP BY holder.name ORDER BY 1)"
    ))
}

/// The sums of all amounts, as columns.
fn amounts(amounts: &[Amount]) -> String {
    let sum = |amount: &Amount| match amount.kind {
        AmountKind::Maximum => format!("max({})", amount.name.replace("_bytes", "_kib")),
        _ => format!("sum({})", amount.name),
    };
    amounts.iter().map(sum).collect::<Vec<_>>().join(",")
}

#[test]
fn of_200_kills_each_loses_at_most_a_tick_and_no_table_has_anything_twice() {
    const KILLS: u64 = 200;
    let mut world = start();
    let (mut ticks, mut xids) = (0, 0);
    for kill in 0..KILLS {
        // Bob comes and goes; every tenth of such times has an error.
        let is_shared = kill / 10 % 2 == 1;
        let bob = is_shared.then(|| (8, Holder::user("bob", Some(2))));
        let alice = (7, Holder::user("alice", Some(1)));
        world.identify_holders(&[Some(alice), bob].into_iter().flatten().collect::<Vec<_>>());
        let with_bob = |frame: FrameBuilder| if is_shared { work(frame).process(8, 50) } else { work(frame) };
        let seconds = 20 + kill * 7 % 31;
        world.run(seconds, with_bob);
        if kill % 20 == 3 {
            world.xid(13);
            xids += 1;
        }
        ticks += seconds;
        // In the middle of a window, and of each second tick.
        if kill % 2 == 0 {
            world.hold_commits();
            world.run(1, with_bob);
            world.release_commits();
            ticks += 1;
        }
        world.restart(3);
    }
    // Both leave, for the rest of the hour and longer.
    world.identify_holders(&[]);
    world.reload(&[]);
    world.run(3_700, |frame| frame.busy(0).gpm(0, 0));
    world.assert_balanced();
    // All time once.
    let whole = "SELECT settled_until_ns - first_seen_ns - slot_ns FROM gpu";
    assert_eq!(world.query::<i64>(whole), 0);
    assert_eq!(world.query::<i64>("SELECT sum(minute.slot_ns) - gpu.slot_ns FROM minute, gpu"), 0);
    let uneven = "SELECT count(*) FROM minute WHERE slot_ns <> (SELECT sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns)
        FROM account WHERE account.minute_ns = minute.minute_ns)";
    assert_eq!(world.query::<i64>(uneven), 0);
    // Half of each tick, of which a kill loses one.
    let used: i64 = world
        .query("SELECT sum(used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns) FROM account");
    let lost = ticks as i64 - used / 500_000_000;
    assert!((0..=KILLS as i64).contains(&lost), "{lost} ticks lost");
    let counted = amounts(AMOUNTS.split_at(11).0);
    assert_eq!(sums(&world, "counter", &counted), sums(&world, "account", &counted));
    let held = "sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns)";
    let of_alice = |sums: String| sums.split(", ").next().unwrap().to_owned();
    let busy = format!("sum(iif(series = 0, {SHAPE}, 0))");
    assert_eq!(of_alice(sums(&world, "shape", &busy)), of_alice(sums(&world, "account", held)));
    assert_eq!(sums(&world, "run", &amounts(AMOUNTS)), sums(&world, "account", &amounts(AMOUNTS)));
    let runs = "SELECT group_concat(runs) FROM (SELECT name || ' ' || count(*) AS runs FROM run GROUP BY name ORDER BY 1)";
    assert_eq!(world.query::<String>(runs), "user:alice 1,user:bob 10", "a gap that is bridged ends no run");
    assert_eq!(
        world.query::<i64>("SELECT count(*) FROM incident WHERE kind = 'xid' AND to_ns = from_ns"),
        xids
    );
    assert_eq!(world.query::<i64>("SELECT codes ->> '$.13.count' FROM xid_sum"), xids);
    // Roll-ups add.
    let tables = |world: &World| {
        let slots: i64 = world.query("SELECT sum(slot_ns) FROM minute");
        let shapes = sums(world, "shape", &format!("sum({SHAPE})"));
        (slots, sums(world, "account", &amounts(AMOUNTS)), shapes)
    };
    let before = tables(&world);
    world.retain(Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) });
    assert_eq!(tables(&world), before);
}

#[test]
fn the_memory_peak_of_a_minute_is_its_largest_tick_and_a_waiting_process_has_the_energy_above_idle_power() {
    let mut world = start();
    let mut joules = 0;
    for second in 0..120 {
        joules += 80;
        world.run(1, |frame| {
            let frame = frame.energy_counter(joules).process(7, 0).busy(0);
            if second == 30 { frame.process_without_sample(7).process_without_sample(7) } else { frame }
        });
    }
    assert_eq!(world.query::<i64>("SELECT max(memory_peak_kib) FROM account"), 3 << 20);
    assert_eq!(world.query::<i64>("SELECT count(*) FROM account WHERE memory_peak_kib > 1 << 20"), 1);
    // The model has no known idle power, so nothing is known to be above it.
    assert_eq!(world.query::<i64>("SELECT sum(energy_waiting_uj) FROM account"), 0);
}

#[test]
fn a_fault_is_an_incident_until_a_reset_also_across_restarts() {
    let mut world = start();
    world.run(60, work);
    world.xid(48);
    world.run(30, work);
    world.restart(5);
    world.run(30, work);
    let kinds = "SELECT group_concat(kind || ' ' || code || ' ' || (to_ns IS NULL), ',') FROM
        (SELECT * FROM incident WHERE kind = 'xid' OR kind IN (SELECT kind FROM incident WHERE to_ns IS NULL) ORDER BY kind = 'xid')";
    let rule = world.reasons()[0].0;
    // The agent is away for longer than a pause, and does not read the GPU at once.
    world.restart_without_frame(1_000);
    world.run_without_frames(30);
    world.first_frame();
    world.run(30, work);
    assert_eq!(world.query::<String>(kinds), format!("{rule} 0 1,xid 48 0"));
    world.run(1, |frame| work(frame).energy_counter(2));
    world.run(1, |frame| work(frame).energy_counter(1));
    world.run(30, |frame| work(frame).energy_counter(2));
    assert_eq!(world.query::<i64>("SELECT count(*) FROM incident WHERE to_ns IS NULL"), 0);
}

#[test]
fn an_xid_has_the_time_at_which_it_was_seen_whenever_it_is_committed() {
    let mut world = start();
    world.run(60, work);
    let begun = world.wall_seconds();
    world.hold_commits();
    world.xid(13);
    world.run(100, work);
    world.xid(13);
    world.run(400, work);
    world.xid(13);
    world.run(30, work);
    world.release_commits();
    world.run(1, work);
    let sql = format!(
        "SELECT group_concat(times) FROM (SELECT concat_ws(' ', from_ns / 1000000000 - {begun}, to_ns / 1000000000 - {begun}) AS times
         FROM incident WHERE kind = 'xid' ORDER BY from_ns)"
    );
    assert_eq!(world.query::<String>(&sql), "0 100,500 500");
}

#[test]
fn an_incident_goes_on_over_a_restart_until_its_gpu_is_known_to_be_well_and_is_told_to_a_ledger_that_opens_late()
 {
    let mut world = start();
    world.run(60, work);
    world.lose_gpu();
    world.run_without_frames(30);
    let kinds = "SELECT group_concat(kind || ' ' || (to_ns IS NULL)) FROM (SELECT * FROM incident ORDER BY kind, from_ns)";
    let lost = world.query::<String>(kinds);
    assert!(lost.ends_with(" 1"), "{lost}");
    // The driver answers only after a while, and then without the GPU.
    world.restart_without_frame(10);
    world.run_without_frames(400);
    world.finish_counting_gpus();
    world.run_without_frames(30);
    assert_eq!(world.query::<String>(kinds), lost);
    world.first_frame();
    world.run(30, work);
    assert_eq!(world.query::<String>(kinds), lost.replace(" 1", " 0"));
    world.restart_without_ledger(1_000);
    world.first_frame();
    world.lose_gpu();
    world.run_without_frames(30);
    world.open_ledger();
    world.run_without_frames(30);
    assert_eq!(world.query::<i64>("SELECT count(*) FROM incident WHERE to_ns IS NULL"), 1);
}
