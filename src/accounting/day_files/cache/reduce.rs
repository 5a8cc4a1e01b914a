//! Keys with no more of a workload than a request looks at, so that few are made of many.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::CacheError;
use super::rank::RowNames;
use super::report::Labels;
use super::store::KeyReader;
use crate::accounting::billing::LineDetail;
use crate::accounting::billing::costs::{CostKey, CostRequest, CostWorkload};
use crate::model::{Fact, GpuId, HolderId, HolderKind, RESERVED};

/// Whether many workloads have one value of a label, so that sums by it are few.
fn is_shared(label: &str) -> bool {
    let of_one = [
        Fact::SlurmJob,
        Fact::SlurmStep,
        Fact::SlurmArrayJob,
        Fact::SlurmArrayTask,
        Fact::SlurmHetJob,
        Fact::SlurmJobName,
        Fact::Pod,
        Fact::PodUid,
        Fact::OwnerName,
        Fact::Container,
        Fact::ContainerName,
        Fact::ContainerImage,
        Fact::Vm,
        Fact::Unit,
    ];
    of_one.iter().all(|fact| fact.label() != label)
}

/// The labels that sums without workloads have.
pub(super) fn shared_labels(labels: &Labels) -> BTreeMap<&str, &str> {
    let labels = labels.iter().filter(|(label, _)| is_shared(label));
    labels.map(|(label, value)| (label.as_str(), value.as_str())).collect()
}

#[derive(Debug)]
pub(super) struct ReducedKeys {
    detail: LineDetail,
    has_gpu: bool,
    needs_workloads: bool,
    has_labels: bool,
    /// The place of what is left of labels, by the number of their text.
    places: HashMap<i64, usize>,
    labels: Vec<Arc<Labels>>,
    by_labels: HashMap<Vec<(String, String)>, usize>,
    /// By the numbers of the key, the GPU, the holder, and the place of the labels; 0 where it is left out.
    keys: HashMap<([i64; 3], usize), Arc<CostKey>>,
}

impl ReducedKeys {
    pub(super) fn of(request: &CostRequest) -> Self {
        let detail = request.properties().map(|property| property.detail()).reduce(LineDetail::and);
        let mut detail = detail.unwrap_or_default();
        if detail.workload {
            let of_titles = HolderKind::OF_TITLES.iter().map(|fact| fact.label().to_owned());
            detail.labels.get_or_insert_default().extend(of_titles);
        }
        let has_gpu = request.properties().any(|property| matches!(property.word(), Some("gpu" | "uuid")));
        let mut labels = detail.labels.iter().flatten();
        let is_shared = labels.clone().all(|label| is_shared(label));
        let needs_workloads = detail.workload || has_gpu || !is_shared;
        Self {
            needs_workloads,
            has_labels: needs_workloads || labels.next().is_some(),
            detail,
            has_gpu,
            places: HashMap::new(),
            labels: Vec::new(),
            by_labels: HashMap::new(),
            keys: HashMap::new(),
        }
    }

    /// Whether sums without workloads do not tell what is asked for apart.
    pub(super) const fn needs_workloads(&self) -> bool {
        self.needs_workloads
    }

    /// Whether keys have something of workloads.
    pub(super) const fn has_labels(&self) -> bool {
        self.has_labels
    }

    /// The key of a row, from what it names.
    pub(super) fn key(
        &mut self,
        keys: &mut KeyReader<'_>,
        of_tenant: &Arc<CostKey>,
        RowNames { key, gpu, holder, labels, .. }: RowNames,
    ) -> Result<Arc<CostKey>, CacheError> {
        let place = self.labels(keys, labels)?;
        let gpu = if self.has_gpu { gpu } else { 0 };
        let holder = if self.detail.workload { holder } else { 0 };
        if let Some(known) = self.keys.get(&([key, gpu, holder], place)) {
            return Ok(Arc::clone(known));
        }
        let id = match holder {
            // The time of a remainder is the tenant's, whatever is told apart.
            0 if of_tenant.tenant.starts_with(RESERVED) => HolderId(Arc::clone(&of_tenant.tenant)),
            0 => HolderId::default(),
            _ => HolderId::new(keys.text(holder)?),
        };
        let gpu_id = match gpu {
            0 => GpuId { index: 0, uuid: "".into() },
            _ => GpuId { index: keys.gpu_index(gpu)?, uuid: keys.name(gpu)? },
        };
        let labels = Arc::clone(&self.labels[place]);
        let workload = Some(CostWorkload { gpu: gpu_id, holder: id, labels });
        let reduced = Arc::new(CostKey { workload, ..(**of_tenant).clone() });
        self.keys.insert(([key, gpu, holder], place), Arc::clone(&reduced));
        Ok(reduced)
    }

    fn labels(&mut self, keys: &KeyReader<'_>, labels: i64) -> Result<usize, CacheError> {
        let wanted = self.detail.labels.as_deref().unwrap_or_default();
        let id = if wanted.is_empty() { 0 } else { labels };
        if let Some(place) = self.places.get(&id) {
            return Ok(*place);
        }
        let mut left = match id {
            0 => Labels::new(),
            id => serde_json::from_str(&keys.text(id)?)?,
        };
        left.retain(|label, _| wanted.contains(label));
        let pairs: Vec<(String, String)> = left.clone().into_iter().collect();
        let place = *self.by_labels.entry(pairs).or_insert_with(|| {
            self.labels.push(Arc::new(left));
            self.labels.len() - 1
        });
        self.places.insert(id, place);
        Ok(place)
    }
}
