//! Macros that declare the configuration keys: one list yields the structs of values and the table that parses them.

/// Declares structs, and the table of all their keys, which fill a `T`:
///
/// `"help" pub struct Name (place) { key: Type, kind(...), Absent("text"), ChangeEffect, in "unit", "help"; }`
///
/// The place of a struct is `(config a.b)`, a part of [`Config`](super::Config) with that path in the file,
/// `(draft a.b)`, which is checked further, `(list a)`, whose only key is the section `a` itself, or `()`, `T` itself. The kinds are the arms of `field!`; `Absent` and
/// `ChangeEffect` are those of the module `key`. Mappings within a mapping are structs of their own, named behind `+`.
macro_rules! keys {
    ($T:ty; $(
        $section:literal $vis:vis struct $Name:ident $place:tt {
            $($key:ident: $Type:ty, $kind:ident($($kind_argument:expr),*), $absent:ident($text:expr), $change:ident,
              $(in $unit:literal,)? $help:literal;)*
        } $(+ { $($inner:ident: $Inner:ty),* })?
    )+) => {
        $(
            #[doc = $section]
            #[derive(Clone, Debug, Default, PartialEq, Eq)]
            $vis struct $Name {
                $(#[doc = $help] $vis $key: $Type,)*
                $($(#[doc = concat!("Keys of `", stringify!($inner), "`.")] $vis $inner: $Inner,)*)?
            }
        )+

        /// Every key, in the order of the printed file.
        pub(crate) const TABLE: Table<$T> = Table {
            keys: &[$($(
                Key {
                    path: path!($place $key),
                    field: field!($place $key $kind($($kind_argument),*)),
                    absent: Absent::$absent($text),
                    change: change!($place $key $change),
                    unit: concat!($($unit)?),
                    help: $help,
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
        pub(crate) const TABLE: Table<$T> = Table {
            keys: &[$(
                Key {
                    path: path!(() $key),
                    field: field!((entry $($at).+) $key $kind($($kind_argument),*)),
                    absent: Absent::$absent($text),
                    change: ChangeEffect::Reload,
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
    ($at:tt $key:ident flag()) => { KeyType::Flag(|target| &mut place!(target $at $key)) };
    ($at:tt $key:ident count($least:expr, $most:expr)) => {
        KeyType::Count { least: $least, most: $most, place: |target| &mut place!(target $at $key) }
    };
    ($at:tt $key:ident duration($least:expr, $most:expr)) => {
        KeyType::Duration { least: $least, most: $most, place: |target| &mut place!(target $at $key) }
    };
    // One of some words, which stand for these values.
    ($at:tt $key:ident word($words:expr, $values:expr)) => {
        KeyType::Word {
            words: &$words,
            set: |target, index| {
                const { assert!($words.len() == $values.len()) };
                place!(target $at $key) = $values[index].into();
            },
        }
    };
    // Any other scalar, by its parser.
    ($at:tt $key:ident text($accepts:expr, $parse:expr)) => {
        KeyType::Text { accepts: $accepts, set: |target, text| put(&mut place!(target $at $key), $parse(text)) }
    };
    // A scalar or a list of scalars, no two alike, by the parser of one.
    ($at:tt $key:ident texts($accepts:expr, $parse:expr)) => {
        KeyType::Texts {
            accepts: $accepts,
            set: |target, text| add(&mut place!(target $at $key), text, $parse(text)),
        }
    };
    // A scalar or a list of scalars, by what adds one.
    ($at:tt $key:ident list($accepts:expr, $add:expr)) => {
        KeyType::Texts { accepts: $accepts, set: |target, text| $add(&mut place!(target $at $key), text) }
    };
    // A mapping of names to scalars or lists of scalars, by what adds one.
    ($at:tt $key:ident pairs($accepts:expr, $add:expr)) => {
        KeyType::Pairs { accepts: $accepts, set: |target, name, text| $add(&mut place!(target $at $key), name, text) }
    };
    // A mapping of names to mappings of names to scalars, by what adds one.
    ($at:tt $key:ident nested_pairs($accepts:expr, $add:expr)) => {
        KeyType::NestedPairs {
            accepts: $accepts,
            set: |target, outer, name, text| $add(&mut place!(target $at $key), outer, name, text),
        }
    };
    // A list of mappings with keys of their own, by their reader and their table.
    ($at:tt $key:ident entries($read:expr, $table:expr)) => {
        KeyType::Maps {
            set: |target, items, base, report| place!(target $at $key) = $read(items, base, report),
            rows: |prefix| $table.keys.iter().flat_map(|key| key.rows(prefix)).collect(),
        }
    };
}

/// What a changed value means to an agent that runs.
macro_rules! change {
    ($at:tt $key:ident Reload) => { ChangeEffect::Reload };
    ((config $($at:ident).+) $key:ident Restart) => {
        ChangeEffect::Restart(|new, old| {
            let differs = new.$($at).+.$key != old.$($at).+.$key;
            new.$($at).+.$key.clone_from(&old.$($at).+.$key);
            differs
        })
    };
}
