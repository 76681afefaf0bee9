//! Enums that travel as one written-down byte, and as a lower-case name in text formats.

/// Implements serde, `Display` and `FromStr` for a fieldless enum whose variants have explicit numbers.
macro_rules! numbered {
    ($type:ident, $what:literal, { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, by ascending number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The number on the wire.
            pub fn number(self) -> u8 {
                self as u8
            }

            /// The value of a number from the wire.
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.number() == number)
            }

            /// The name in files and output.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|value| value.name()).collect();
                    format!(concat!("no such ", $what, ", use one of: {}"), names.join(", "))
                })
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.serialize_str(self.name())
                } else {
                    serializer.serialize_u8(self.number())
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use serde::de::Error;
                if deserializer.is_human_readable() {
                    let name = crate::wire::bounded::text::<D, 32>(deserializer)?;
                    name.parse().map_err(D::Error::custom)
                } else {
                    let number = <u8 as serde::Deserialize>::deserialize(deserializer)?;
                    Self::from_number(number)
                        .ok_or_else(|| D::Error::custom(format_args!(concat!("unknown ", $what, " {}"), number)))
                }
            }
        }
    };
}

pub(crate) use numbered;
