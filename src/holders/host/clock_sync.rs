//! Whether the kernel says that its wall clock is synchronised.

// No safe crate wraps the read-only form of adjtimex(2).
#![allow(unsafe_code)]

/// Whether the kernel reports a synchronised wall clock; false where the call fails.
///
/// adjtimex(2) with no modes set changes nothing and needs no right. systemd-timesyncd, ntpd, and chrony with
/// `rtcsync` clear `STA_UNSYNC`; the kernel sets it again when the estimated error exceeds 16 s. Chrony without
/// `rtcsync`, and hypervisor tools that only set the clock, leave it set.
pub fn clock_is_synchronised() -> bool {
    // SAFETY: timex holds only integers, for which all zeros are valid; modes = 0 asks for a read.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live timex that the call fills.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    state >= 0 && timex.status & libc::STA_UNSYNC == 0
}
