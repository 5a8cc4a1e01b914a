//! Runs meter and ledger in virtual time with a new holder every 17 seconds, and shows that neither memory nor the
//! work of a tick grows with the number of holders ever seen.
//!
//! `cargo run --release --features examples --example growth -- --days 30` runs 150,000 holders on one GPU. One line per day; exit status
//! 1 where live heap, resident memory, or allocations per tick of the last day exceed those of the second by more than
//! a tenth and a fixed allowance. Processor time is only shown: it depends on the machine.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a measuring program, not the agent"
)]

mod counting;
#[path = "../benches/counts/made.rs"]
mod made;

use std::sync::Arc;
use std::time::Duration;

use gpumeter::accounting::ledger::{Ledger, LedgerQueue, Opening};
use gpumeter::holders::{IdentifiedProcess, Identities};
use gpumeter::meter::{Inputs, Meter, SamplerNews};
use gpumeter::model::Holder;
use gpumeter::runtime::clock::processor_time;

use made::{frame, id, policy, stamp};

const DAY: u64 = 86_400;
const TICK: u64 = 15;
const HOLDERS_PER_DAY: u64 = 5_000;

fn main() {
    let days = days().unwrap_or_else(|| {
        println!("usage: growth [--days N], N from 3 on");
        std::process::exit(2)
    });
    let directory = tempfile::tempdir().unwrap();
    let opening = Opening { boot_id: "growth".into(), now: stamp(0), ..Opening::default() };
    let (mut ledger, recovered) = Ledger::open(&directory.path().join("ledger.db"), &opening).unwrap();
    let mut meter = Meter::new(Arc::new(policy([TICK; 3])), stamp(0), Some(recovered));
    let (queue, mut acknowledged) = (LedgerQueue::default(), Vec::new());
    let mut reference = None;
    println!("day  holders met  live heap KiB  resident KiB  allocations/tick  processor us/tick");
    for day in 0..days {
        let (allocations, processor) = (counting::allocations(), processor_time());
        for tick in 0..DAY / TICK {
            let second = day * DAY + tick * TICK;
            let holder = second * HOLDERS_PER_DAY / DAY;
            let mut news = vec![SamplerNews::Frame(Box::new(frame(id(0), second, &present(holder), 40)))];
            if second == 0 {
                news.insert(0, SamplerNews::Found { gpu: id(0), bus: "".into() });
            }
            let inputs = Inputs {
                news,
                identities: identities(holder),
                acknowledged: std::mem::take(&mut acknowledged),
                ..Inputs::default()
            };
            queue.offer(meter.tick(stamp(second), inputs).batch);
            let batch = queue.wait_for_batch(Duration::ZERO).unwrap();
            acknowledged.push(ledger.commit(&batch).unwrap());
        }
        let ticks = DAY / TICK;
        let today = Day {
            heap: counting::live() / 1024,
            resident: counting::resident(),
            allocations: (counting::allocations() - allocations) / ticks,
        };
        let met = (day + 1) * HOLDERS_PER_DAY;
        let processor = processor_time().0.saturating_sub(processor.0) / ticks / 1_000;
        println!(
            "{:>3}  {met:>11}  {:>13}  {:>12}  {:>16}  {processor:>17}",
            day + 1,
            today.heap,
            today.resident,
            today.allocations
        );
        // Measured: the heap grows until the second day and is flat from there on.
        if day == 1 {
            reference = Some(today);
        }
        if day + 1 == days && reference.is_none_or(|reference| !today.is_as_small_as(&reference)) {
            println!("memory or work grew with the number of holders met");
            std::process::exit(1);
        }
    }
}

#[derive(Clone, Copy)]
struct Day {
    heap: u64,
    resident: u64,
    allocations: u64,
}

impl Day {
    fn is_as_small_as(&self, earlier: &Self) -> bool {
        let flat = |now: u64, then: u64, allowance: u64| now <= then + then / 10 + allowance;
        flat(self.heap, earlier.heap, 64)
            && flat(self.resident, earlier.resident, 1024)
            && flat(self.allocations, earlier.allocations, 4)
    }
}

fn days() -> Option<u64> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(3),
        ["--days", days] => days.parse().ok().filter(|days| *days >= 3),
        _ => None,
    }
}

/// The holder with that number and the one before it have one process each.
fn present(holder: u64) -> [u32; 2] {
    [holder, holder.saturating_sub(1)].map(|number| u32::try_from(number % 30_000).unwrap() + 1)
}

fn identities(holder: u64) -> Arc<Identities> {
    let identified =
        present(holder).into_iter().zip([holder, holder.saturating_sub(1)]).map(|(pid, number)| {
            let holder = Arc::new(Holder::unit(&format!("job-{number}.service"), Some("alice"), Some(1_000)));
            (pid, IdentifiedProcess { holder, name: "python3".into(), start_time: number })
        });
    Arc::new(identified.collect())
}
