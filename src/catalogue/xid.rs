//! What an XID means: its class and the action that it calls for, from NVIDIA's XID catalogue.
//!
//! The rows below are those that nodes really meet; a code without a row is `unknown` and calls for support.

/// The action that an XID calls for; the values of the `action` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Restart the application.
    RestartApp,
    /// Nothing; it is information.
    Ignore,
    /// Drain and reset the GPU.
    ResetGpu,
    /// Drain and reboot the node.
    RebootNode,
    /// Check cabling, cooling or seating.
    Check,
    /// Ask the vendor.
    ContactSupport,
}

impl Action {
    /// All actions, in the order in which they are counted.
    pub const ALL: [Self; 6] =
        [Self::RestartApp, Self::Ignore, Self::ResetGpu, Self::RebootNode, Self::Check, Self::ContactSupport];

    /// The value of the `action` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RestartApp => "restart_app",
            Self::Ignore => "ignore",
            Self::ResetGpu => "reset_gpu",
            Self::RebootNode => "reboot_node",
            Self::Check => "check",
            Self::ContactSupport => "contact_support",
        }
    }
}

/// What kind of fault an XID tells of; the values of the `class` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The application's own doing.
    Application,
    /// The GPU or its memory.
    Hardware,
    /// Driver or firmware.
    Driver,
    /// NVLink.
    Link,
    /// No fault.
    Information,
    /// Not in the table.
    Unknown,
}

impl Class {
    /// The value of the `class` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Hardware => "hardware",
            Self::Driver => "driver",
            Self::Link => "link",
            Self::Information => "information",
            Self::Unknown => "unknown",
        }
    }
}

/// Class and action of an XID.
pub const fn meaning(xid: u32) -> (Class, Action) {
    match xid {
        8 | 13 | 31 | 32 | 68 | 69 | 94 => (Class::Application, Action::RestartApp),
        43 | 45 | 63 | 92 | 137 | 154 => (Class::Information, Action::Ignore),
        46 | 62 | 109 | 119 | 120 | 136 => (Class::Driver, Action::ResetGpu),
        48 | 64 | 95 | 140 | 143 | 171 | 172 => (Class::Hardware, Action::ResetGpu),
        54 => (Class::Hardware, Action::Check),
        74 | 144..=150 => (Class::Link, Action::ResetGpu),
        79 => (Class::Hardware, Action::RebootNode),
        _ => (Class::Unknown, Action::ContactSupport),
    }
}
