//! Enums whose variants have a name each.

/// Declares an enum with the name of each variant, the function that returns the name, and `ALL`, which has the order of
/// declaration and can lack no variant:
///
/// `pub enum Tier { Fast = "fast", Slow = "slow", } fn name`
macro_rules! named {
    (
        $(#[$of_enum:meta])* pub enum $Enum:ident { $($(#[$of_variant:meta])* $Variant:ident = $text:literal,)* }
        $(#[$of_name:meta])* fn $name:ident
    ) => {
        $(#[$of_enum])*
        pub enum $Enum { $($(#[$of_variant])* $Variant,)* }

        impl $Enum {
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$Variant),*];

            $(#[$of_name])*
            pub const fn $name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $text,)*
                }
            }
        }
    };
}
pub(crate) use named;
