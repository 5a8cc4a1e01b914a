//! Reads what advice is told: what workloads are for (`advice.classes`), and findings to leave out (`advice.dismiss`).

use super::entries::{entries_of, read_entries};
use super::problem::{Complaint, ProblemCollector};
use super::tenants::add_pattern;
use super::tree::YamlNode;
use crate::accounting::advice::Dismissal;
use crate::accounting::tenants::ClassRule;
use crate::model::WorkloadClass;

const WORDS: [&str; 6] = {
    let [batch, interactive, service, warm, interruptible, reserve] = WorkloadClass::DECLARED;
    [batch.name(), interactive.name(), service.name(), warm.name(), interruptible.name(), reserve.name()]
};

entry_keys! { ClassRule;
    r#match => patterns, pairs("labels of gpu_workload_info with patterns", add_pattern),
        Required("{slurm_partition: \"preempt*\"}"),
        "Labels of a holder, each with a pattern in which * stands for anything; all must match.";
    class => class, word(WORDS, WorkloadClass::DECLARED), Required("interruptible"),
        "What it is for; warm idles on purpose, reserve holds GPUs for others.";
}

/// Reads the list and returns the valid rules. A class changes no amount, so labels that users can forge need no
/// `trust_labels` here.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<ClassRule> {
    entries_of(read_entries(items, base, TABLE.keys, report, |rule: ClassRule, _, _| {
        // Mistakes in the patterns and the class were reported.
        let is_complete = !rule.patterns.is_empty() && rule.class != WorkloadClass::Unknown;
        if is_complete { Ok(rule) } else { Err(None) }
    }))
}

pub(crate) fn dismissal(text: &str) -> Result<Dismissal, Complaint> {
    Dismissal::parse(text).ok_or_else(|| {
        Complaint::about(
            text,
            "dismisses no finding",
            "copy what gpumeter advise prints, such as A2-1f3c9a2b:31h",
        )
    })
}
