//! Integers in JSON.

use serde::Deserialize;

/// An integer, written as text, since other languages read only 53 bits of a number exactly. Both are read.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum IntegerJson {
    Text(String),
    Number(u64),
}

impl IntegerJson {
    /// Its value.
    ///
    /// # Errors
    /// The text is no integer of that type.
    pub fn parse<T: std::str::FromStr>(self) -> Result<T, String> {
        let text = match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        };
        text.parse().map_err(|_| format!("{text:?} is not an integer in range"))
    }
}

pub mod integer {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no integer of that type.
    pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        super::IntegerJson::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

pub mod optional_integer {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(to)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no integer of that type.
    pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        let value = Option::<super::IntegerJson>::deserialize(from)?;
        value.map(super::IntegerJson::parse).transpose().map_err(D::Error::custom)
    }
}
