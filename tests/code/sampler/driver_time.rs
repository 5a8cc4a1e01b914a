//! Time inside the driver, summed over the node, since calls of all GPUs wait for one lock of the driver.
//!
//! The simulated library adds up the duration of each call, so the sums do not depend on the machine.
//! Budgets use wall time, so a busy machine can only make them stretch further.

use std::collections::BTreeMap;

use super::world::{DRIVER_SHARE, World};

/// What health needs, which is spent like the fast tier: clock event reasons every 10 s and three calls of ECC every
/// minute, 0.5 ms each, of eight GPUs.
const HEALTH: u64 = 8 * (500 / 10 + 3 * 500 / 60);

/// What its other readings cost at an eighth of their cadence, the least at which they are read.
const OTHERS: u64 = 300;

/// A node of eight H100 with measured call durations and this many processes on each GPU, of which every second one
/// is busy.
fn scenario(processes: u32, demand: f64) -> String {
    let process = |gpu: u32, number: u32| {
        let demand = if number.is_multiple_of(2) { demand } else { 0.0 };
        format!(
            r#"{{"pid": {}, "gpu": {gpu}, "phases": [{{"from": 0, "to": 1000, "demand": {demand}, "memory_bytes": 1073741824}}]}}"#,
            1_000 + gpu * 100 + number
        )
    };
    let all: Vec<String> =
        (0..8).flat_map(|gpu| (0..processes).map(move |number| process(gpu, number))).collect();
    format!(
        r#"{{"cycle_seconds": 1000, "delays": "realistic", "gpus": [{{"profile": "h100", "count": 8}}], "processes": [{}]}}"#,
        all.join(", ")
    )
}

/// Millionths of wall time inside the driver, by function, over eight minutes: one slow tier at full stretch.
fn shares(world: &mut World, seconds_per_tick: u64) -> BTreeMap<String, u64> {
    const SECONDS: u64 = 480;
    let before = world.time_in_driver(seconds_per_tick);
    for _ in 1..SECONDS / seconds_per_tick {
        world.tick_every(seconds_per_tick);
    }
    let after = world.time_in_driver(seconds_per_tick);
    let share = |(function, owed): (&String, &u64)| {
        (function.clone(), (owed - before.get(function).unwrap_or(&0)) / (SECONDS * 1_000))
    };
    after.iter().map(share).collect()
}

/// The share of the whole node, in millionths, after the budget has settled, and by function as a table.
fn share_of(processes: u32, demand: f64, seconds_per_tick: u64) -> (u64, String) {
    let mut world = World::node(&scenario(processes, demand), 8);
    for _ in 0..150 / seconds_per_tick {
        world.tick_every(seconds_per_tick);
    }
    let mut shares: Vec<_> = shares(&mut world, seconds_per_tick).into_iter().collect();
    shares.sort_by_key(|(_, share)| std::cmp::Reverse(*share));
    let table: Vec<String> =
        shares.iter().map(|(function, share)| format!("{share:6} {function}\n")).collect();
    (shares.iter().map(|(_, share)| share).sum(), table.concat())
}

#[test]
fn an_idle_node_of_eight_gpus_stays_within_half_a_percent_and_what_health_needs() {
    let (sum, table) = share_of(0, 0.0, 1);
    println!("idle: {sum}\n{table}");
    assert!(sum <= u64::from(DRIVER_SHARE) + HEALTH + OTHERS, "{sum}");
}

#[test]
fn a_node_with_one_busy_process_on_each_gpu_stays_within_half_a_percent_and_what_health_needs() {
    let (sum, table) = share_of(1, 0.9, 1);
    println!("one at work on each: {sum}\n{table}");
    // While a list of a GPU waits, its process is sampled.
    assert!(sum <= u64::from(DRIVER_SHARE) + HEALTH + OTHERS + 500, "{sum}");
}

/// A node of eight H100 and twenty users, one process each, whose memory changes in every second.
fn twenty_users() -> String {
    let process = |number: u32| {
        let phase = |from: u32, memory: u64| {
            format!(r#"{{"from": {from}, "to": {}, "demand": 0.2, "memory_bytes": {memory}}}"#, from + 1)
        };
        let phases = [phase(0, 1 << 30), phase(1, 1 << 31)].join(", ");
        format!(r#"{{"pid": {}, "gpu": {}, "phases": [{phases}]}}"#, 1_000 + number, number % 8)
    };
    format!(
        r#"{{"cycle_seconds": 2, "delays": "realistic", "gpus": [{{"profile": "h100", "count": 8}}], "processes": [{}]}}"#,
        (0..20).map(process).collect::<Vec<_>>().join(", ")
    )
}

/// By memory that changes in every tick, lists would be due in every tick: 0.9 ms each.
#[test]
fn under_presence_lists_of_twenty_users_keep_to_the_drivers_share_like_without_it() {
    let sum = |world: &mut World| {
        for _ in 0..150 {
            world.tick_every(1);
        }
        let shares = shares(world, 1);
        println!("{shares:?}");
        shares.values().sum::<u64>()
    };
    let by_grants = sum(&mut World::node(&twenty_users(), 8));
    let by_presence = sum(&mut World::node_by_presence(&twenty_users(), 8, DRIVER_SHARE));
    let unlimited = sum(&mut World::node_by_presence(&twenty_users(), 8, 1_000_000));
    println!("twenty users: {by_grants} by grants, {by_presence} by presence, {unlimited} without a limit");
    assert!(
        by_presence <= by_grants + 1_500 && unlimited > by_presence + 4_000,
        "{by_presence} of {unlimited}"
    );
}

/// A GPM sample and the process samples of each GPU take 0.8 % of wall time at one tick per second. Use cannot be split
/// between processes without them, so that is the floor; only a longer tick lowers it.
#[test]
fn shared_gpus_stay_near_their_floor_and_at_ticks_of_two_seconds_near_half_a_percent() {
    let floor = 2 * 500 * 8;
    let (sum, table) = share_of(25, 0.05, 1);
    println!("shared: {sum}\n{table}");
    assert!(sum <= floor + 1_200 + HEALTH + OTHERS, "{sum}");
    let (sum, table) = share_of(25, 0.05, 2);
    println!("shared, every two seconds: {sum}\n{table}");
    assert!(sum <= u64::from(DRIVER_SHARE) + HEALTH + OTHERS, "{sum}");
}
