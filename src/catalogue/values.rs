//! Whatever a family tells that is no reading of a whole GPU: of instances, processes, tenants and holdings, and what
//! is known of a GPU beside its readings.

use super::LabelPair;

/// What is known of a GPU beside its readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum IdentityValue {
    Info,
    PlatformInfo,
    FabricInfo,
    Present,
    Absence,
    Up,
    Unsupported,
    MigInfo,
    Busy,
    Health,
}

/// What is known of a GPU's XIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum XidValue {
    Errors,
    ActionErrors,
    LastTimestamp,
    Info,
}

/// One series per MIG instance.
#[derive(Debug)]
pub struct InstancePoint {
    /// Values of the family's labels beyond `gpu`, `uuid` and `gpu_instance`.
    pub labels: &'static [LabelPair],
    /// Which reading.
    pub value: InstanceValue,
}

/// A reading of a MIG instance; the order is that of [`crate::model::InstanceFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum InstanceValue {
    MemoryTotal,
    MemoryUsed,
    MemoryFree,
    GrEngineActive,
    SmActive,
    SmOccupancy,
    TensorActive,
    DramActive,
    Integer,
    Fp16,
    Fp32,
    Fp64,
    TensorDfma,
    TensorDmma,
    TensorHmma,
    TensorImma,
    SramUncorrected,
}

impl InstanceValue {
    /// All values, in their order.
    pub const ALL: [Self; 17] = [
        Self::MemoryTotal,
        Self::MemoryUsed,
        Self::MemoryFree,
        Self::GrEngineActive,
        Self::SmActive,
        Self::SmOccupancy,
        Self::TensorActive,
        Self::DramActive,
        Self::Integer,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
        Self::TensorDfma,
        Self::TensorDmma,
        Self::TensorHmma,
        Self::TensorImma,
        Self::SramUncorrected,
    ];

    /// Whether it is a share of time, which can be integrated.
    pub const fn is_ratio(self) -> bool {
        !matches!(self, Self::MemoryTotal | Self::MemoryUsed | Self::MemoryFree | Self::SramUncorrected)
    }
}

/// One series per process on a GPU.
#[derive(Debug)]
pub struct ProcessPoint {
    /// Values of the family's labels beyond those that tell the process.
    pub labels: &'static [LabelPair],
    /// Which value.
    pub value: ProcessValue,
}

/// How many labels tell a process: gpu, uuid, gpu_instance, pid, process, workload, tenant.
pub const PROCESS_LABELS: usize = 7;

/// A value of a process on a GPU; the order is that of [`crate::model::snapshot::ProcessState::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum ProcessValue {
    Memory,
    Sm,
    MemoryActivity,
    Encoder,
    Decoder,
}

/// One series per tenant, or per workload, and GPU.
#[derive(Debug)]
pub struct AccountPoint {
    /// Values of the family's labels beyond `tenant` or `workload`, `gpu` and `uuid`.
    pub labels: &'static [LabelPair],
    /// Which value of the account.
    pub value: AccountValue,
}

/// A value of the account of a tenant or workload on a GPU; the order is that of
/// [`crate::model::snapshot::AccountState::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum AccountValue {
    Held,
    Used,
    Idle,
    Lent,
    BeyondShare,
    OutsideHolding,
    Unmeasured,
    Unavailable,
    EnergyStatic,
    EnergyDynamic,
    HeldCost,
    UsedCost,
}

impl AccountValue {
    /// All values, in their order.
    pub const ALL: [Self; 12] = [
        Self::Held,
        Self::Used,
        Self::Idle,
        Self::Lent,
        Self::BeyondShare,
        Self::OutsideHolding,
        Self::Unmeasured,
        Self::Unavailable,
        Self::EnergyStatic,
        Self::EnergyDynamic,
        Self::HeldCost,
        Self::UsedCost,
    ];
}

/// What is known of the holdings of the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each family's help says it")]
pub enum HoldingValue {
    Ratio,
    WorkloadInfo,
    CostPerHour,
}
