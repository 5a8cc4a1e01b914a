//! The boards that a history knows: their names, as the simulated driver has them, and what they draw.

/// What a history must know of a board.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PastBoard {
    /// Its name in scenarios.
    profile: &'static str,
    /// Product name.
    pub(super) model: &'static str,
    pub(super) memory_gib: u64,
    /// Power without a process, and of a GPU that is always busy, in watts.
    pub(super) idle_watts: u64,
    pub(super) full_watts: u64,
    /// Whether the driver has GPM for it.
    pub(super) gpm: bool,
}

/// What a process adds to the power of a board by being there, in watts: 26 to 66 were measured (arXiv 2605.23918).
pub(super) const CONTEXT_WATTS: u64 = 30;

const fn board(
    profile: &'static str,
    model: &'static str,
    memory_gib: u64,
    [idle_watts, full_watts]: [u64; 2],
    gpm: bool,
) -> PastBoard {
    PastBoard { profile, model, memory_gib, idle_watts, full_watts, gpm }
}

static BOARDS: [PastBoard; 7] = [
    board("h100", "NVIDIA H100 80GB HBM3 (simulated)", 79, [70, 630], true),
    board("h200", "NVIDIA H200 (simulated)", 140, [78, 640], true),
    board("b200", "NVIDIA B200 (simulated)", 178, [196, 920], true),
    board("a100", "NVIDIA A100-SXM4-80GB (simulated)", 79, [60, 360], false),
    board("l40s", "NVIDIA L40S (simulated)", 44, [35, 310], false),
    board("l4", "NVIDIA L4 (simulated)", 22, [12, 70], false),
    board("t4", "Tesla T4 (simulated)", 15, [33, 68], false),
];

/// The board of that name.
pub(super) fn find(profile: &str) -> Result<&'static PastBoard, String> {
    BOARDS.iter().find(|board| board.profile == profile).ok_or_else(|| {
        let known: Vec<&str> = BOARDS.iter().map(|board| board.profile).collect();
        format!("a history knows no board {profile:?}; it knows {}", known.join(", "))
    })
}
