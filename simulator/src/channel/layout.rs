//! How a GPU is cut into MIG instances, as scenario and state write it.
//!
//! In: a list of instances, of which none turns MIG off, or the mode beside the list: what a GPU is between the two
//! steps of a reconfiguration, on and not yet cut, only the mode can say. Out: mode and list, or what is wrong.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A MIG instance and its first memory slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Placement {
    pub(crate) profile: String,
    pub(crate) start: u32,
    /// Its compute instances, such as `1c.3g.40gb`; none is one that has all of it.
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
    fn a_list_says_the_mode_and_the_mode_may_be_said() {
        let one = r#"[{"profile": "1g.10gb", "start": 0}]"#;
        assert_eq!(read("[]").unwrap(), Layout::default());
        assert!(read(one).unwrap().is_on());
        assert_eq!(read(one).unwrap(), read(&format!(r#"{{"mode": "on", "instances": {one}}}"#)).unwrap());
        let bare = read(r#"{"mode": "on"}"#).unwrap();
        assert!(bare.is_on() && bare.instances.is_empty());
        assert_eq!(read(&serde_json::to_string(&bare).unwrap()).unwrap(), bare, "as it is settled");
    }

    #[test]
    fn what_is_neither_is_named() {
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
            let told = read(text).unwrap_err();
            assert!(told.contains(words), "{text}: {told}");
        }
    }
}
