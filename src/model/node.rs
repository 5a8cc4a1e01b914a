//! The node whose account a ledger is.

/// What is known of the node, for bills and for the rates that select it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeIdentity {
    /// Its name; empty where it is unknown.
    pub name: String,
    pub cluster: Option<String>,
    pub pool: Option<String>,
    /// Its instance type, such as `p4d.24xlarge`.
    pub instance_type: Option<String>,
    /// Whether it may be taken away at any time for a lower price; none where that is unknown.
    pub spot: Option<bool>,
    /// Whether its GPUs are simulated or replayed.
    pub simulated: bool,
}
