//! The MIG layout of a GPU in the scenario and state files.
//!
//! In: a list of instances, where an empty list turns MIG off; or mode and list, since only the mode can say that
//! MIG is on without instances, as between the two steps of a reconfiguration.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A MIG instance and its first memory slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Placement {
    pub(crate) profile: String,
    pub(crate) start: u32,
    /// Its compute instances, such as `1c.3g.40gb`; empty: one that has the whole instance.
    #[serde(default)]
    pub(crate) compute: Vec<String>,
}

/// Whether MIG is on, and the instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Layout {
    pub(crate) mode: Mode,
    pub(crate) instances: Vec<Placement>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    #[default]
    Off,
    On,
}

impl Layout {
    /// Whether MIG is on.
    pub(crate) fn is_on(&self) -> bool {
        self.mode == Mode::On
    }
}

/// The long form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    mode: Mode,
    #[serde(default)]
    instances: Vec<Placement>,
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Layout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a list of MIG instances, or {"mode": "on" or "off", "instances": [...]}"#)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Layout, A::Error> {
        let instances = Vec::<Placement>::deserialize(SeqAccessDeserializer::new(list))?;
        let mode = if instances.is_empty() { Mode::Off } else { Mode::On };
        Ok(Layout { mode, instances })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Layout, A::Error> {
        let Written { mode, instances } = Written::deserialize(MapAccessDeserializer::new(map))?;
        if mode == Mode::Off && !instances.is_empty() {
            return Err(A::Error::custom(
                "mig: mode \"off\" with instances; write \"on\", or leave them out",
            ));
        }
        Ok(Layout { mode, instances })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Layout, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_layout_is_a_list_or_a_mode_and_a_list() {
        let one = r#"[{"profile": "1g.10gb", "start": 0}]"#;
        assert_eq!(read("[]").unwrap(), Layout::default());
        assert!(read(one).unwrap().is_on());
        assert_eq!(read(one).unwrap(), read(&format!(r#"{{"mode": "on", "instances": {one}}}"#)).unwrap());
        let bare = read(r#"{"mode": "on"}"#).unwrap();
        assert!(bare.is_on() && bare.instances.is_empty());
        assert_eq!(read(&serde_json::to_string(&bare).unwrap()).unwrap(), bare, "as it is settled");
    }

    #[test]
    fn errors_name_what_is_wrong_with_a_layout() {
        for (text, words) in [
            (r#""on""#, "a list of MIG instances, or"),
            (r#"{"mode": "maybe"}"#, "unknown variant `maybe`"),
            (r#"{"instances": []}"#, "missing field `mode`"),
            (r#"{"mode": "on", "instance": []}"#, "unknown field `instance`"),
            (r#"[{"profile": "1g.10gb"}]"#, "missing field `start`"),
            (
                r#"{"mode": "off", "instances": [{"profile": "1g.10gb", "start": 0}]}"#,
                "mode \"off\" with instances",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
