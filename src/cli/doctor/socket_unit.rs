//! Whether the socket unit of systemd and the configured addresses agree, from the files of the units.

use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::config::{Config, ListenAddress};
use crate::holders::host::Host;

/// Directories of units: the administrator's, and those of packages.
const UNITS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// The finding about the socket unit; none where it is not enabled.
pub(super) fn check_socket_unit(config: &Config, host: &Host) -> Option<Finding> {
    let enabled = host.path(Path::new("/etc/systemd/system/sockets.target.wants/gpumeter.socket"));
    fs::symlink_metadata(enabled).ok()?;
    let sockets = values(host, "gpumeter.socket", "ListenStream");
    let starts = values(host, "gpumeter.service", "ExecStart");
    let listed = sockets.join(" and ");
    let finding = |works, why: String| Some(Finding::new("socket unit", works, why));
    if !starts.iter().any(|start| start.contains("--web.systemd-socket")) {
        return finding(
            false,
            format!(
                "gpumeter.socket is enabled, so systemd listens on {listed}, and gpumeter.service is started without \
                 --web.systemd-socket, so it cannot listen there and nobody answers: add that to its ExecStart=, or \
                 disable gpumeter.socket"
            ),
        );
    }
    let served: Vec<ListenAddress> = sockets.iter().filter_map(|text| parse(text)).collect();
    let unserved: Vec<String> = match config.web.listen == Config::default().web.listen {
        true => Vec::new(),
        false => config
            .web
            .listen
            .iter()
            .filter(|address| !served.contains(address))
            .map(ToString::to_string)
            .collect(),
    };
    if unserved.is_empty() {
        return finding(true, format!("gpumeter.socket listens on {listed} for the agent"));
    }
    finding(
        false,
        format!(
            "web.listen {} is not served: gpumeter.socket is enabled, and the agent serves on its sockets alone ({listed}); \
             give the address there with ListenStream=, or disable gpumeter.socket",
            unserved.join(" and ")
        ),
    )
}

/// An address as systemd writes it: a port alone, an address with a port, or a path.
fn parse(text: &str) -> Option<ListenAddress> {
    match text.bytes().next()? {
        b'/' => format!("unix:{text}"),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => format!(":{text}"),
        _ => text.to_owned(),
    }
    .parse()
    .ok()
}

/// The values of a key in a unit and its drop-ins; an empty one takes the former ones away.
fn values(host: &Host, unit: &str, key: &str) -> Vec<String> {
    let mut values = Vec::new();
    for file in files(host, unit) {
        let text = fs::read_to_string(file).unwrap_or_default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match (name.trim() == key, value.trim()) {
                (false, _) => {}
                (true, "") => values.clear(),
                (true, value) => values.push(value.to_owned()),
            }
        }
    }
    values
}

/// The unit's own file, then its drop-ins by name.
fn files(host: &Host, unit: &str) -> Vec<PathBuf> {
    let places = UNITS.map(|directory| host.path(Path::new(directory)));
    let own = places.iter().map(|place| place.join(unit)).find(|path| path.exists());
    let mut drop_ins: Vec<PathBuf> = places
        .iter()
        .filter_map(|place| fs::read_dir(place.join(format!("{unit}.d"))).ok())
        .flat_map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())))
        .filter(|path| path.extension().is_some_and(|ending| ending == "conf"))
        .collect();
    drop_ins.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    drop_ins.dedup_by(|one, other| one.file_name() == other.file_name());
    own.into_iter().chain(drop_ins).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_socket_unit_that_conflicts_with_the_service_or_with_web_listen_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let host = Host::at(directory.path());
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let check = |listen: &str| {
            let config = Config::parse(&format!("web: {{listen: {listen}}}"), "test").unwrap();
            check_socket_unit(&config, &host).map(|finding| (finding.works, finding.why))
        };
        let packaged = |name: &str| {
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd").join(name))
                .unwrap()
        };
        write("usr/lib/systemd/system/gpumeter.socket", &packaged("gpumeter.socket"));
        write("usr/lib/systemd/system/gpumeter.service", &packaged("gpumeter.service"));
        assert_eq!(check("\":9855\""), None, "it is not enabled");
        write("etc/systemd/system/sockets.target.wants/gpumeter.socket", "");
        assert!(check("\":9855\"").unwrap().0);
        let own = "etc/systemd/system/gpumeter.service.d/own.conf";
        write(own, "[Service]\nExecStart=\nExecStart=/usr/bin/gpumeter run --listen 127.0.0.1:9855\n");
        let (works, why) = check("\":9855\"").unwrap();
        assert!(!works && why.contains("listens on 9855") && why.contains("ExecStart="), "{why}");
        write(own, "");
        let (works, why) = check("\"127.0.0.1:9999\"").unwrap();
        assert!(!works && why.starts_with("web.listen 127.0.0.1:9999 is not served"), "{why}");
        write(
            "etc/systemd/system/gpumeter.socket.d/port.conf",
            "[Socket]\nListenStream=\nListenStream=127.0.0.1:9999\n",
        );
        assert!(check("\"127.0.0.1:9999\"").unwrap().0);
    }
}
