//! Enumerations whose variants have names.

/// Defines an enumeration with the names of its variants, as `Variant = "name"`: `ALL`, `name` and `from_name`.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $kind:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        pub enum $kind {
            $($(#[$doc])* $variant,)*
        }

        impl $kind {
            /// Every one, in order.
            pub const ALL: [$kind; [$($name),*].len()] = [$($kind::$variant),*];

            /// The name in texts.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$variant => $name,)*
                }
            }

            /// The inverse of `name`.
            pub fn from_name(name: &str) -> Option<$kind> {
                match name {
                    $($name => Some($kind::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
