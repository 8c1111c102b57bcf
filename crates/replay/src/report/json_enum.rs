//! Enums that are words in JSON.

/// Declares a public enum of unit variants, each with its word in JSON.
///
/// The enum is `Copy` and ordered as declared; `name()` is the word. Renaming a variant does not
/// change the JSON.
macro_rules! json_enum {
    ($(#[$meta:meta])* enum $Name:ident { $($(#[$doc:meta])* $Variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, schemars::JsonSchema)]
        pub enum $Name {
            $($(#[$doc])* #[serde(rename = $word)] $Variant,)+
        }

        impl $Name {
            /// The word in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }

            /// The variant with this word in JSON; `None` for other words.
            #[allow(dead_code, reason = "only some words are read back")]
            pub(crate) fn from_name(name: &str) -> Option<Self> {
                [$(Self::$Variant),+].into_iter().find(|one| one.name() == name)
            }
        }

        /// The word in JSON, padded as a string is.
        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use json_enum;
