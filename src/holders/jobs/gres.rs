//! The GPUs of a node in `gres.conf`: device files by position, types, and numbers of shards.
//!
//! Slurm numbers a node's GPUs by their position in `gres.conf`, whatever their device files are called.

use std::collections::BTreeMap;

/// The most names to which a bracket in a list of hosts or files expands.
const MOST_NAMES: u32 = 4_096;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gres {
    /// Minor number by position; none for a MIG instance.
    minors: Vec<Option<u32>>,
    types: BTreeMap<u32, String>,
    shards: BTreeMap<u32, u32>,
    /// Shards that are divided among all GPUs.
    shards_of_all: u32,
}

impl Gres {
    /// Parses the lines that apply to the node of that name. Other lines are skipped, since slurmd has checked the file.
    pub(super) fn parse(text: &str, node: Option<&str>) -> Self {
        let mut gres = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let words = line.split_whitespace().filter_map(|word| word.split_once('='));
            let words: BTreeMap<String, &str> =
                words.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect();
            let is_elsewhere = match (words.get("nodename"), node) {
                (Some(names), Some(node)) => !expand(names).iter().any(|name| name == node),
                _ => false,
            };
            let files =
                || words.get("file").map(|files| expand(files).iter().map(|file| minor(file)).collect());
            match words.get("name") {
                Some(&"gpu") if !is_elsewhere && words.contains_key("multiplefiles") => {
                    gres.minors.push(None)
                }
                Some(&"gpu") if !is_elsewhere => {
                    gres.add_gpus(words.get("type"), files().unwrap_or_else(Vec::new));
                }
                Some(&"shard") if !is_elsewhere => gres.add_shards(words.get("count"), files()),
                _ => {}
            }
        }
        gres
    }

    fn add_gpus(&mut self, kind: Option<&&str>, files: Vec<Option<u32>>) {
        if let Some(kind) = kind {
            self.types.extend(files.iter().flatten().map(|minor| (*minor, kind.to_ascii_lowercase())));
        }
        self.minors.extend(files);
    }

    /// The count of a line is divided among its files, without files among all GPUs.
    fn add_shards(&mut self, count: Option<&&str>, files: Option<Vec<Option<u32>>>) {
        let count = count.and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
        let Some(files) = files else {
            self.shards_of_all = count;
            return;
        };
        let each = count / u32::try_from(files.len()).unwrap_or(u32::MAX).max(1);
        self.shards.extend(files.into_iter().flatten().map(|minor| (minor, each)));
    }

    /// The minor number of the GPU at a position; the position itself where the file names no device files.
    pub(super) fn minor(&self, position: u32) -> Option<u32> {
        if self.minors.is_empty() {
            return Some(position);
        }
        *self.minors.get(position as usize)?
    }

    /// The type of the GPU with that minor number, where the file names its device file and its type.
    pub(super) fn type_of(&self, minor: u32) -> Option<&str> {
        self.types.get(&minor).map(String::as_str)
    }

    /// Whether the file names the GPUs of the node one by one.
    pub(super) const fn has_positions(&self) -> bool {
        !self.minors.is_empty()
    }

    /// The number of shards of a GPU on a node with so many GPUs; none where it has none.
    pub(super) fn shards(&self, minor: u32, gpus: usize) -> Option<u32> {
        let gpus = u32::try_from(gpus).unwrap_or(u32::MAX).max(1);
        let shards = self.shards.get(&minor).copied().unwrap_or(self.shards_of_all / gpus);
        (shards > 0).then_some(shards)
    }
}

fn minor(file: &str) -> Option<u32> {
    file[file.trim_end_matches(|c: char| c.is_ascii_digit()).len()..].parse().ok()
}

/// Expands a list such as `/dev/nvidia[0-2,4]` or `a,b` to its names.
fn expand(list: &str) -> Vec<String> {
    let Some((before, rest)) = list.split_once('[') else {
        return list.split(',').map(str::to_owned).collect();
    };
    let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
    let numbers = inside.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let width = first.len();
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if last.saturating_sub(first) < MOST_NAMES => {
                (first..=last).map(|number| format!("{before}{number:0width$}{after}")).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        }
    });
    numbers.take(MOST_NAMES as usize).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_position_is_that_among_the_device_files_of_the_node() {
        let minors =
            |text: &str| (0..4).map(|at| Gres::parse(text, Some("n2")).minor(at)).collect::<Vec<_>>();
        for (text, expected) in [
            ("", [Some(0), Some(1), Some(2), Some(3)]),
            ("AutoDetect=nvml\nName=gpu Count=4", [Some(0), Some(1), Some(2), Some(3)]),
            (
                "Name=gpu File=/dev/nvidia7\nName=gpu File=/dev/nvidia[3-5]\n",
                [Some(7), Some(3), Some(4), Some(5)],
            ),
            (
                "NodeName=n1 Name=gpu File=/dev/nvidia[0-3]\nNodeName=n2 Name=gpu File=/dev/nvidia4,/dev/nvidia6",
                [Some(4), Some(6), None, None],
            ),
            (
                "Name=gpu Type=1g MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\nname=gpu file=/dev/nvidia1",
                [None, Some(1), None, None],
            ),
            ("Name=gpu File=/dev/nvidia[0-4000000000]\nName=gpu File=/dev/x", [None; 4]),
        ] {
            assert_eq!(minors(text), expected, "{text}");
        }
    }

    #[test]
    fn a_type_is_that_of_the_line_which_names_the_device_file() {
        let text = "Name=gpu Type=A100 File=/dev/nvidia[0-1]\nName=gpu File=/dev/nvidia2\n\
                    NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia3\nName=gpu Type=t4 Count=2";
        let gres = Gres::parse(text, Some("n2"));
        assert_eq!([0, 1, 2, 3].map(|minor| gres.type_of(minor)), [Some("a100"), Some("a100"), None, None]);
        assert!(gres.has_positions() && !Gres::parse("AutoDetect=nvml", None).has_positions());
    }

    #[test]
    fn the_shards_of_a_line_are_divided_among_its_files_or_all_gpus() {
        let shards = |text: &str| [0, 1, 2, 4].map(|minor| Gres::parse(text, Some("n2")).shards(minor, 4));
        for (text, expected) in [
            ("", [None; 4]),
            ("Name=gpu File=/dev/nvidia[0-3]\nName=mps Count=100\n", [None; 4]),
            (
                "Name=shard Count=4 File=/dev/nvidia0\nname=shard count=24 file=/dev/nvidia[1-2,4]\n",
                [Some(4), Some(8), Some(8), Some(8)],
            ),
            ("Name=shard Count=32", [Some(8); 4]),
            ("NodeName=n[1-3] Name=shard Count=4 File=/dev/nvidia0", [Some(4), None, None, None]),
            ("NodeName=n[5-7] Name=shard Count=4 File=/dev/nvidia0", [None; 4]),
            ("Name=shard Count=0 File=/dev/nvidia0\nName=shard Count=x\n# Name=shard Count=4", [None; 4]),
            ("Name=shard Count=4 File=/dev/nvidia[0-4000000000]", [None; 4]),
        ] {
            assert_eq!(shards(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_gres_conf_is_read_without_a_panic(
            text in "((Name|Count|File|NodeName)=[a-z0-9,\\[\\]-]{0,9}|gpu|shard|\\s|\\PC){0,20}"
        ) {
            Gres::parse(&text, None);
        }
    }
}
