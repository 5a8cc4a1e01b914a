//! Evidence from frames to the ledger, with kills in between.

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

#[test]
fn an_agent_that_is_killed_again_and_again_has_evidence_of_all_the_time_that_its_account_has_once() {
    let mut world = start();
    for _ in 0..60 {
        world.run(100, work);
        // Killed in the middle of a window.
        world.restart(3);
    }
    world.run(100, work);
    let columns = "from_0_ns + from_1_ns + from_5_ns + from_10_ns + from_20_ns + from_30_ns + from_40_ns + from_50_ns + from_60_ns
        + from_70_ns + from_80_ns + from_90_ns + shared_ns + unknown_ns";
    let of_alice = "JOIN holder ON holder.id = holder WHERE holder.name = 'user:alice'";
    let shapes = |sum: &str, series: u8| -> i64 {
        world.query(&format!("SELECT sum({sum}) FROM shape {of_alice} AND series = {series}"))
    };
    let hours = "(SELECT max(begin_ns) + 3600000000000 FROM shape)";
    let held = "within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns";
    let account = |sum: &str| -> i64 {
        world.query(&format!("SELECT sum({sum}) FROM account {of_alice} AND minute_ns < {hours}"))
    };
    let unmeasured = account("unmeasured_ns");
    assert!(unmeasured > 0 && shapes(columns, 0) > 3_600_000_000_000 / 2);
    assert_eq!(shapes(columns, 0), account(held), "all time once");
    assert_eq!(shapes("unknown_ns", 0), unmeasured);
    assert_eq!(shapes("from_50_ns", 0), account("within_ns + idle_ns"), "half of each tick");
    assert_eq!(shapes("from_30_ns", 1), shapes("from_50_ns", 0), "multiprocessors");
    assert_eq!(shapes("from_5_ns", 4), shapes("from_50_ns", 0), "memory bandwidth");
    assert_eq!(
        world.query::<i64>("SELECT count(*) FROM shape WHERE series IN (2, 3)"),
        0,
        "nothing reported them"
    );
    assert_eq!(world.query::<i64>("SELECT count(*) FROM run"), 0, "a gap that is bridged ends no run");
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
    assert_eq!(world.query::<i64>("SELECT max(memory_peak_bytes) FROM account"), 3 << 30);
    assert_eq!(world.query::<i64>("SELECT count(*) FROM account WHERE memory_peak_bytes > 1 << 30"), 1);
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
    assert_eq!(world.query::<String>(kinds), format!("{rule} 0 1,xid 48 0"));
    world.run(1, |frame| work(frame).energy_counter(2));
    world.run(1, |frame| work(frame).energy_counter(1));
    world.run(30, |frame| work(frame).energy_counter(2));
    assert_eq!(world.query::<i64>("SELECT count(*) FROM incident WHERE to_ns IS NULL"), 0);
}
