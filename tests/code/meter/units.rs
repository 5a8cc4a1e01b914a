//! Units in which several users run processes: each user is a holder of his own.

use gpumeter::model::Holder;
use gpumeter::model::catalogue::AccountValue;

use super::world::World;
use super::{holder, seconds};

const HUB: &str = "unit:jupyterhub.service";
const FURTHER: &str = "unit:jupyterhub.service/1011";

fn of_unit(uid: u32) -> Holder {
    Holder::unit("jupyterhub.service", Some(&format!("u{uid}")), Some(uid))
}

fn run_both(world: &mut World, seconds: u64) {
    world.identify_holders(&[(7, of_unit(1007)), (8, of_unit(1011))]);
    world.run(seconds, |frame| frame.process(7, 25).process(8, 75).busy(100));
}

/// Used seconds of a holder in all its versions.
fn used(world: &World, name: &str) -> u64 {
    world.settled().iter().filter(|(id, _)| id.name() == name).map(|(_, row)| seconds(row)[1]).sum()
}

fn user_names(world: &World, name: &str) -> String {
    world.stored(&format!("SELECT group_concat(DISTINCT facts ->> 'user') FROM holder WHERE name = '{name}'"))
}

#[test]
fn each_further_user_of_a_unit_is_a_holder_with_his_own_name_and_use() {
    let mut world = World::of_presence("nobody");
    world.identify_holders(&[(7, of_unit(1007))]);
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let alone: Vec<String> = world.settled().keys().map(|id| id.name().to_owned()).collect();
    assert!(alone.contains(&HUB.to_owned()) && !alone.contains(&FURTHER.to_owned()), "{alone:?}");
    run_both(&mut world, 75);
    let both = world.settled_seconds() - 60;
    assert_eq!((used(&world, HUB), used(&world, FURTHER)), (60 + both / 4, both * 3 / 4));
    assert_eq!((user_names(&world, HUB), user_names(&world, FURTHER)), ("u1007".into(), "u1011".into()));
    let rows = world.settled();
    assert_eq!(seconds(&rows[&holder(FURTHER)])[0], both / 2, "each present holder has a half");
    world.assert_balanced();
}

#[test]
fn the_first_user_of_a_unit_stays_the_first_over_restarts_and_however_long_he_is_away() {
    let mut world = World::of_presence("nobody");
    run_both(&mut world, 60);
    let held = |world: &World| {
        [HUB, FURTHER].map(|name| world.workload_value(name, AccountValue::Held).unwrap_or(0))
    };
    let before = held(&world);
    let further_alone = |world: &mut World, seconds| {
        world.identify_holders(&[(8, of_unit(1011))]);
        world.run(seconds, |frame| frame.process(8, 100).busy(100));
    };
    world.restart(1);
    further_alone(&mut world, 60);
    let first_used = used(&world, HUB);
    // Nobody uses the GPU for longer than a workload is remembered.
    world.identify_holders(&[]);
    world.run(1_900, |frame| frame.busy(0));
    further_alone(&mut world, 30);
    world.restart(1);
    further_alone(&mut world, 30);
    world.run_without_frames(15);
    assert_eq!(used(&world, HUB), first_used, "the first user was away");
    let after = held(&world);
    assert!(before.iter().zip(after).all(|(before, after)| after >= *before), "{before:?} then {after:?}");
    assert_eq!((user_names(&world, HUB), user_names(&world, FURTHER)), ("u1007".into(), "u1011".into()));
    world.assert_balanced();
}

#[test]
fn a_grant_to_a_unit_of_several_users_is_no_single_users_and_covers_each_of_them() {
    let mut world = World::new(&[]);
    world.grant_unit("jupyterhub.service");
    run_both(&mut world, 120);
    world.restart(1);
    run_both(&mut world, 60);
    let outside: u64 = world.settled().values().map(|row| row.used.outside + row.used.beyond).sum();
    assert_eq!(outside, 0, "both use within the grant");
    let holders = "FROM counter JOIN holder ON holder.id = holder WHERE kind = 'unit' AND";
    let granted = format!("SELECT group_concat(DISTINCT name) {holders} within_ns + idle_ns > 0");
    assert_eq!(world.stored::<String>(&granted), HUB);
    let users = format!("SELECT count(*) {holders} within_ns + idle_ns > 0 AND facts ->> 'user' IS NOT NULL");
    assert_eq!(world.stored::<i64>(&users), 0, "the first user does not hold what the unit was granted");
    world.assert_balanced();
}

#[test]
fn of_users_who_are_seen_at_once_the_one_of_the_oldest_process_is_the_first() {
    let mut world = World::of_presence("nobody");
    world.identify_started(&[(7, 20, of_unit(1011)), (8, 10, of_unit(1007))]);
    world.run(60, |frame| frame.process(7, 75).process(8, 25).busy(100));
    assert_eq!((user_names(&world, HUB), user_names(&world, FURTHER)), ("u1007".into(), "u1011".into()));
}
