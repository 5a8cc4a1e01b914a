//! NVIDIA GPUs on the PCI bus, and the kernel driver that each is bound to.
//!
//! It reads only what the kernel stores in `/sys/bus/pci/devices`, so a GPU that hangs does not block it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::{Host, untrusted};

const NVIDIA: &[u8] = b"0x10de";

/// Display controllers: VGA (0x0300) and 3D (0x0302).
const DISPLAY: &[u8] = b"0x03";

/// The most PCI functions that are read; no node has more.
const MOST_FUNCTIONS: usize = 4_096;

/// The NVIDIA GPUs on the bus by [`address`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pci(BTreeMap<Arc<str>, PciFunction>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PciFunction {
    driver: Option<Arc<str>>,
    /// Inode number of its directory, which changes when it is removed from the bus and added again.
    epoch: u64,
}

impl Host {
    /// Reads the NVIDIA GPUs on the bus; none where the kernel shows no bus, as in a container without `/sys`.
    pub fn pci(&self) -> Option<Pci> {
        let devices = fs::read_dir(self.root.join("sys/bus/pci/devices")).ok()?;
        let gpus = devices.take(MOST_FUNCTIONS).filter_map(Result::ok).filter_map(|entry| {
            let name = entry.file_name();
            let address = address(name.to_str()?)?;
            let path = entry.path();
            let begins = |file, start: &[u8]| {
                untrusted::read(&path.join(file), 64).is_ok_and(|text| text.starts_with(start))
            };
            (begins("vendor", NVIDIA) && begins("class", DISPLAY)).then(|| {
                let epoch = fs::metadata(&path).map_or(0, |directory| directory.ino());
                (address, PciFunction { driver: read_driver(&path), epoch })
            })
        });
        Some(Pci(gpus.collect()))
    }
}

impl Pci {
    /// A bus with these GPUs: address and driver.
    pub fn of(gpus: impl IntoIterator<Item = (Arc<str>, Option<Arc<str>>)>) -> Self {
        let function = |driver| PciFunction { driver, epoch: 0 };
        Self(gpus.into_iter().map(|(address, driver)| (address, function(driver))).collect())
    }

    /// The driver of the GPU at an address: none where there is no GPU, `Some(None)` where the GPU has no driver.
    pub fn driver(&self, address: &str) -> Option<Option<&str>> {
        self.0.get(address).map(|function| function.driver.as_deref())
    }

    /// The GPUs that are bound to a driver of that name: address, and a number that changes when the GPU is removed from
    /// the bus and added again.
    pub fn bound_to<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Arc<str>, u64)> {
        let bound = self.0.iter().filter(move |(_, function)| function.driver.as_deref() == Some(name));
        bound.map(|(address, function)| (address, function.epoch))
    }
}

/// Whether a driver of that name passes the device to a virtual machine: vfio-pci and vendors' variants of it.
pub fn is_passthrough_driver(driver: &str) -> bool {
    let name = driver.replace('_', "-");
    name == "vfio-pci" || name.ends_with("-vfio-pci") || name == "pci-stub" || name == "pciback"
}

/// A bus id in the kernel's spelling, `0000:0f:00.0`; NVML writes eight digits of domain and upper case.
pub fn address(text: &str) -> Option<Arc<str>> {
    let (domain, rest) = text.trim().split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |text: &str, most: u32| u32::from_str_radix(text, 16).ok().filter(|number| *number <= most);
    let domain = number(domain, u32::MAX)?;
    let (bus, device, function) = (number(bus, 0xFF)?, number(device, 0x1F)?, number(function, 7)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}").into())
}

fn read_driver(device: &Path) -> Option<Arc<str>> {
    let target = fs::read_link(device.join("driver")).ok()?;
    Some(target.file_name()?.to_str()?.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn device(root: &Path, name: &str, (vendor, class): (&str, &str), driver: Option<&str>) {
        let place = root.join("sys/bus/pci/devices").join(name);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("vendor"), format!("{vendor}\n")).unwrap();
        fs::write(place.join("class"), format!("{class}\n")).unwrap();
        if let Some(driver) = driver {
            let target = format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(target, place.join("driver")).unwrap();
        }
    }

    #[test]
    fn gpus_are_told_from_other_devices_and_by_their_drivers() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "0000:0f:00.0", ("0x10de", "0x030200"), Some("nvidia"));
        device(root.path(), "0000:2d:00.0", ("0x10de", "0x030000"), Some("vfio-pci"));
        device(root.path(), "0000:44:00.0", ("0x10de", "0x030200"), None);
        // A bridge of the same maker, an audio function, a GPU of another.
        device(root.path(), "0000:05:00.0", ("0x10de", "0x068000"), Some("nvidia"));
        device(root.path(), "0000:2d:00.1", ("0x10de", "0x040300"), Some("snd_hda_intel"));
        device(root.path(), "0000:03:00.0", ("0x1a03", "0x030000"), Some("ast"));
        let pci = Host::at(root.path()).pci().unwrap();
        assert_eq!(pci.driver("0000:0f:00.0"), Some(Some("nvidia")));
        assert_eq!(pci.driver("0000:2d:00.0"), Some(Some("vfio-pci")));
        assert_eq!(pci.driver("0000:44:00.0"), Some(None));
        assert_eq!(pci.driver("0000:05:00.0"), None);
        assert_eq!(pci.driver("0000:2d:00.1"), None);
        assert_eq!(
            pci.bound_to("nvidia").map(|(address, _)| &**address).collect::<Vec<_>>(),
            ["0000:0f:00.0"]
        );
    }

    #[test]
    fn a_host_without_a_bus_is_not_one_without_gpus() {
        assert_eq!(Host::at(tempfile::tempdir().unwrap().path()).pci(), None);
    }

    #[test]
    fn the_drivers_spelling_is_the_kernels() {
        assert_eq!(address("00000000:0F:00.0").as_deref(), Some("0000:0f:00.0"));
        assert_eq!(address("00010000:C1:1F.7").as_deref(), Some("10000:c1:1f.7"));
        assert_eq!(address("0000:0f:00.0").as_deref(), Some("0000:0f:00.0"));
        for wrong in ["", "0f:00.0", "0000:0f:00", "0000:0f:40.0", "0000:zz:00.0", "pci0000:00"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_guests_drivers_are_known_by_name() {
        for name in ["vfio-pci", "nvgrace_gpu_vfio_pci", "nvidia_vgpu_vfio_pci", "pci-stub"] {
            assert!(is_passthrough_driver(name), "{name}");
        }
        for name in ["nvidia", "nouveau", ""] {
            assert!(!is_passthrough_driver(name), "{name}");
        }
    }
}
