//! A11: a hypothesis of workloads that keep a GPU busy with few of its multiprocessors. Busy time alone cannot show it: one
//! multiprocessor of 132 makes a GPU 100 % busy.

use super::runs::runs;
use super::shapes::{LEAST_ALONE, alone, is_mostly_alone, share_from};
use super::{AdviceRule, FoundAdvice, Known, WorkloadGroup, hours};
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::Recurrence;
use crate::model::{Nanoseconds, Series, Shape};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::BusyButShallow,
    code: "A11",
    rule: "in half of its time alone on the GPU or more it was busy for 80 % or more, and in half of that at most 20 % of the \
           multiprocessors worked; neither FP64 nor memory bandwidth is its limit; 3 runs or 7 days, 24 GPU-hours",
    risk: "it is a hypothesis: look at one run with a profiler (nsys) before you change it",
    how: "try larger batches, fused kernels or CUDA graphs, more workers that load data, or a smaller GPU",
    is_credit: false,
    find,
};

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    // The same, and more certain.
    if known.has_smaller(group) {
        return None;
    }
    let mut recurrence = Recurrence::default();
    runs(group).iter().for_each(|run| run.add_to(&mut recurrence));
    let series = [Series::Busy, Series::Sm, Series::Tensor, Series::Fp64, Series::Dram];
    let [busy, sm, tensor, fp64, dram] = known.shapes(group, series)?;
    let slots = group.slots().map(|(key, _, slot, _)| (key, slot)).collect();
    let is_shallow = is_shallow(share_from(busy, 80)?, share_from(sm, 20)?);
    // Where one of them is not known, it may be the limit.
    let has_limit = [share_from(fp64, 50)? >= 500, share_from(dram, 50)? >= 500];
    let is_fp64 = share_from(fp64, 10)? >= 100;
    let is_known = alone(sm) >= LEAST_ALONE.0.into() && is_mostly_alone(busy) && is_mostly_alone(sm);
    if !is_shallow
        || is_fp64
        || has_limit.contains(&true)
        || !is_known
        || !recurrence.is_enough(known.evidence.to)
    {
        return None;
    }
    let extent = Nanoseconds(u64::try_from(alone(sm)).unwrap_or(u64::MAX));
    let cause = cause(tensor, dram).map(|cause| format!("; {cause}"));
    let what = format!(
        "busy, but with at most 20 % of the multiprocessors, over {} alone on the GPU{}",
        hours(extent),
        cause.unwrap_or_default(),
    );
    let seen = recurrence.first.map(|first| [first, recurrence.last]);
    Some(FoundAdvice {
        what,
        facts: String::new(),
        runs: recurrence.runs,
        grade: recurrence.grade,
        stretches: Vec::new(),
        slots,
        seen,
        extent,
    })
}

/// Whether it was busy for half of the time or more, and few multiprocessors worked in half of that or more: in thousandths of the
/// time, that with 80 % of busy time or more, and that with a fifth of the multiprocessors or more. They may be different times, so
/// what is left for both at once counts: a GPU that is idle and another one that works are not shallow together.
const fn is_shallow(busy: u128, with_many: u128) -> bool {
    busy >= 500 && 2 * busy.saturating_sub(with_many) >= busy
}

/// One sentence of what may be the cause; none where that is not known.
fn cause(tensor: &Shape, dram: &Shape) -> Option<&'static str> {
    let is_below = |shape: &Shape, edge| Some(share_from(shape, edge)? <= 500);
    match (is_below(tensor, 1), is_below(dram, 10)?) {
        (_, true) => {
            Some("memory is hardly read either: small kernels, or kernels that wait for data or for the CPU")
        }
        (Some(true), false) => {
            Some("tensor cores do nothing: small kernels without matrix products, or in full precision")
        }
        (Some(false), false) => Some("tensor cores work now and then: the batch may be too small"),
        (None, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::EDGES;

    #[test]
    fn what_the_driver_does_not_tell_is_no_cause() {
        let of = |place: usize| {
            let mut shape = Shape::default();
            shape.0[place] = 100;
            shape
        };
        let (none, all, unknown) = (of(0), of(EDGES.len() - 1), Shape::default());
        assert!(cause(&none, &all).is_some_and(|cause| cause.contains("tensor cores do nothing")));
        assert!(cause(&all, &all).is_some_and(|cause| cause.contains("the batch may be too small")));
        assert!(cause(&unknown, &none).is_some_and(|cause| cause.contains("memory is hardly read")));
        assert_eq!((cause(&unknown, &all), cause(&all, &unknown)), (None, None));
    }

    #[test]
    fn few_multiprocessors_count_only_while_the_gpu_is_busy() {
        assert!(is_shallow(1_000, 0) && is_shallow(1_000, 500) && is_shallow(500, 250));
        assert!(!is_shallow(499, 0), "mostly idle");
        assert!(!is_shallow(1_000, 501), "median of SM above 20 %, as of a well-run LLM cluster");
        assert!(!is_shallow(500, 500), "one GPU works well, and another one is idle");
    }
}
