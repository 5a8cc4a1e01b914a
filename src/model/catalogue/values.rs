//! Values of MIG instances, processes and accounts, each by its place in the snapshot.

use super::LabelPair;

/// A value, with the labels that tell it from the family's other values of the same instance, process or account.
#[derive(Debug)]
pub struct Labelled<V> {
    /// The family's last labels, with their values.
    pub labels: &'static [LabelPair],
    pub value: V,
}

pub(super) const fn labelled<V: Copy>(labels: &'static [LabelPair], value: V) -> Labelled<V> {
    Labelled { labels, value }
}

/// Declares an enum together with `ALL`, so that no variant can be left out.
macro_rules! listed {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            pub const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];
        }
    };
}
pub(super) use listed;

listed! {
    /// A reading of a MIG instance; the order is that of [`crate::model::InstanceFrame`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    InstanceValue {
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
}

impl InstanceValue {
    /// Whether it is a share of time, which can be integrated.
    pub const fn is_ratio(self) -> bool {
        !matches!(self, Self::MemoryTotal | Self::MemoryUsed | Self::MemoryFree | Self::SramUncorrected)
    }
}

/// How many labels identify a process: gpu, uuid, gpu_instance, pid, process, workload, tenant.
pub const PROCESS_LABELS: usize = 7;

/// A value of a process on a GPU; the order is that of [`crate::model::snapshot::ProcessState::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessValue {
    Memory,
    Sm,
    MemoryActivity,
    Encoder,
    Decoder,
}

listed! {
    /// A value of the account of a tenant or workload on a GPU; the order is that of
    /// [`crate::model::snapshot::AccountState::values`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AccountValue {
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
}
