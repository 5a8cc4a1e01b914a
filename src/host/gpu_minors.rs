//! Which GPU has which device minor number, as the kernel's driver tells it without a driver call.
//!
//! In: `/proc/driver/nvidia/gpus/*/information`. Out: minor number to UUID; empty where there is no such file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::bounded;

/// Largest number of GPUs of a node.
const MOST_GPUS: usize = 256;

/// UUIDs by minor number.
pub(super) fn read(root: &Path) -> BTreeMap<u32, String> {
    let Ok(gpus) = fs::read_dir(root.join("proc/driver/nvidia/gpus")) else { return BTreeMap::new() };
    let files = gpus.take(MOST_GPUS).filter_map(Result::ok).map(|gpu| gpu.path().join("information"));
    files.filter_map(|file| minor(&bounded::read(&file, bounded::PROC).ok()?)).collect()
}

fn minor(information: &[u8]) -> Option<(u32, String)> {
    let text = String::from_utf8_lossy(information);
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    Some((value("Device Minor")?.parse().ok()?, value("GPU UUID")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_minor_number_stands_beside_the_uuid() {
        let root = tempfile::tempdir().unwrap();
        assert!(read(root.path()).is_empty());
        let gpu = root.path().join("proc/driver/nvidia/gpus/0000:3b:00.0");
        fs::create_dir_all(&gpu).unwrap();
        let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 210\nGPU UUID: \t GPU-1d1c0000-0000-0000-0000-000000000000\n\
                    Bus Location: \t 0000:3b:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
        fs::write(gpu.join("information"), text).unwrap();
        let expected = BTreeMap::from([(3, "GPU-1d1c0000-0000-0000-0000-000000000000".to_owned())]);
        assert_eq!(read(root.path()), expected);
        fs::write(gpu.join("information"), "Device Minor: none\n").unwrap();
        assert!(read(root.path()).is_empty());
    }
}
