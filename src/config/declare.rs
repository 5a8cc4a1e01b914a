//! Macros that declare the configuration keys: one list yields the structs of values and the table that parses them.

/// Declares structs, and the table of all their keys, which fill a `T`:
///
/// `"help" pub struct Name (place) { key: Type, kind(...), Absent("text"), ChangeEffect, in "unit", "help"; }`
///
/// The place of a struct is `(config a.b)`, a part of [`Config`](super::Config) with that path in the file,
/// `(draft a.b)`, which is checked further, `(list a)`, whose only key is the section `a` itself, or `()`, `T` itself. The kinds are
/// the arms of `field!`; `Absent` and `ChangeEffect` are those of the module `key`. A table that is not printed needs no help. Mappings
/// within a mapping are structs of their own, named behind `+`.
macro_rules! keys {
    ($T:ty; $(
        $section:literal $vis:vis struct $Name:ident $place:tt {
            $($key:ident: $Type:ty, $kind:ident($($kind_argument:expr),*), $absent:ident($text:expr), $change:ident
              $(, in $unit:literal)? $(, $help:literal)?;)*
        } $(+ { $($inner:ident: $Inner:ty),* })?
    )+) => {
        $(
            #[doc = $section]
            #[derive(Clone, Debug, Default, PartialEq, Eq)]
            $vis struct $Name {
                $($(#[doc = $help])? $vis $key: $Type,)*
                $($(#[doc = concat!("Keys of `", stringify!($inner), "`.")] $vis $inner: $Inner,)*)?
            }
        )+

        /// Every key, in the order of the printed file.
        pub(crate) const TABLE: $crate::config::key::Table<$T> = $crate::config::key::Table {
            keys: &[$($(
                $crate::config::key::Key {
                    path: path!($place $key),
                    field: field!($place $key $kind($($kind_argument),*)),
                    absent: $crate::config::key::Absent::$absent($text),
                    change: change!($place $key $change),
                    unit: concat!($($unit)?),
                    help: concat!($($help)?),
                },
            )*)+],
            mappings: &[$((path!($place), $section)),+],
        };
    };
}

/// Declares the keys of the entries of a list, which fill a `T`, each with the field in which its value is stored:
///
/// `key => field, kind(...), Absent("text"), in "unit", "help";`
macro_rules! entry_keys {
    ($T:ty; $(
        $key:ident => $($at:ident).+, $kind:ident($($kind_argument:expr),*), $absent:ident($text:expr),
        $(in $unit:literal,)? $help:literal;
    )*) => {
        pub(crate) const TABLE: $crate::config::key::Table<$T> = $crate::config::key::Table {
            keys: &[$(
                $crate::config::key::Key {
                    path: path!(() $key),
                    field: field!((entry $($at).+) $key $kind($($kind_argument),*)),
                    absent: $crate::config::key::Absent::$absent($text),
                    change: $crate::config::key::ChangeEffect::Reload,
                    unit: concat!($($unit)?),
                    help: $help,
                },
            )*],
            mappings: &[],
        };
    };
}

/// The path of a key, or of the mapping, in the file.
macro_rules! path {
    ((config $first:ident $(. $then:ident)*) $($key:ident)?) => {
        concat!(stringify!($first), $(".", stringify!($then),)* $(".", stringify!($key))?)
    };
    ((draft $section:ident $(. $then:ident)*) $($key:ident)?) => {
        concat!(stringify!($section), $(".", stringify!($then),)* $(".", stringify!($key))?)
    };
    ((list $list:ident) $($key:ident)?) => { stringify!($list) };
    // A keyword of Rust.
    (() r#match) => { "match" };
    (() $($key:ident)?) => { concat!($(stringify!($key))?) };
}

/// The field of a key in what is filled.
macro_rules! place {
    ($target:ident (config $($at:ident).+) $key:ident) => { $target.config.$($at).+.$key };
    ($target:ident (draft $($at:ident).+) $key:ident) => { $target.$($at).+.$key };
    ($target:ident (list $list:ident) $key:ident) => { $target.$list.$key };
    ($target:ident () $key:ident) => { $target.$key };
    ($target:ident (entry $($at:ident).+) $key:ident) => { $target.$($at).+ };
}

/// What a key accepts, and how that is stored.
macro_rules! field {
    ($at:tt $key:ident flag()) => { field!($at $key text("true or false", $crate::config::values::flag)) };
    ($at:tt $key:ident count($least:expr, $most:expr)) => {
        field!($at $key scalar(
            format!("a whole number from {} to {}", $least, $most),
            |text: &str| $crate::config::values::count(text, $least, $most)
        ))
    };
    ($at:tt $key:ident duration($least:expr, $most:expr)) => {
        field!($at $key scalar(
            {
                let [least, most] = [$least, $most].map($crate::config::time::in_words);
                format!("a duration from {least} to {most}")
            },
            |text: &str| $crate::config::time::duration(text, $least, $most)
        ))
    };
    // One of some words, which stand for these values.
    ($at:tt $key:ident word($words:expr, $values:expr)) => {
        field!($at $key scalar(
            $crate::config::values::one_of(&$words),
            |text: &str| {
                const { assert!($words.len() == $values.len()) };
                $crate::config::values::word(text, &$words).map(|place| $values[place])
            }
        ))
    };
    // Any other scalar, by its parser.
    ($at:tt $key:ident text($accepts:expr, $parse:expr)) => {
        field!($at $key scalar($accepts.to_owned(), $parse))
    };
    ($at:tt $key:ident scalar($accepts:expr, $parse:expr)) => {
        $crate::config::key::KeyType {
            accepts: || $accepts,
            set: $crate::config::key::KeySetter::Scalar(|target, text| {
                $crate::config::values::put(&mut place!(target $at $key), $parse(text))
            }),
        }
    };
    // A scalar or a list of scalars, no two alike, by the parser of one.
    ($at:tt $key:ident texts($accepts:expr, $parse:expr)) => {
        field!($at $key list($accepts, |list, text| $crate::config::values::add(list, text, $parse(text))))
    };
    // A scalar or a list of scalars, by what adds one.
    ($at:tt $key:ident list($accepts:expr, $add:expr)) => {
        $crate::config::key::KeyType {
            accepts: || format!("{}, or a list of them", $accepts),
            set: $crate::config::key::KeySetter::Scalars(|target, text| $add(&mut place!(target $at $key), text)),
        }
    };
    // A mapping of names to scalars or lists of scalars, by what adds one.
    ($at:tt $key:ident pairs($accepts:expr, $add:expr)) => {
        $crate::config::key::KeyType {
            accepts: || format!("a mapping of {}", $accepts),
            set: $crate::config::key::KeySetter::Pairs(|target, name, text| {
                $add(&mut place!(target $at $key), name, text)
            }),
        }
    };
    // A mapping of names to mappings of names to scalars, by what adds one.
    ($at:tt $key:ident nested_pairs($accepts:expr, $add:expr)) => {
        $crate::config::key::KeyType {
            accepts: || format!("a mapping of {}", $accepts),
            set: $crate::config::key::KeySetter::NestedPairs(|target, outer, name, text| {
                $add(&mut place!(target $at $key), outer, name, text)
            }),
        }
    };
    // A list of mappings with keys of their own, by their reader and their table.
    ($at:tt $key:ident entries($read:expr, $table:expr)) => {
        $crate::config::key::KeyType {
            accepts: || "a list".to_owned(),
            set: $crate::config::key::KeySetter::Maps {
                set: |target, items, base, report| place!(target $at $key) = $read(items, base, report),
                rows: |prefix| $table.keys.iter().flat_map(|key| key.rows(prefix)).collect(),
            },
        }
    };
}

/// What a changed value means to an agent that runs.
macro_rules! change {
    ($at:tt $key:ident Reload) => { $crate::config::key::ChangeEffect::Reload };
    ((config $($at:ident).+) $key:ident Restart) => {
        $crate::config::key::ChangeEffect::Restart(|new, old| {
            let differs = new.$($at).+.$key != old.$($at).+.$key;
            new.$($at).+.$key.clone_from(&old.$($at).+.$key);
            differs
        })
    };
}
