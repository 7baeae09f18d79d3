//! One declaration of a protocol's options, from which all the rest follows.
//!
//! ```text
//!   options! ──┬──► the struct, and its default
//!              ├──► the table for `--help`: name, default, help with its range
//!              └──► parsing, with errors that name the range
//! ```

use alloc::{format, string::String};
use core::time::Duration;

/// Parses an option's value; for options of kind `parsed`.
///
/// # Errors
/// With the accepted kind of value.
pub fn parse_option<T: core::str::FromStr>(value: &str, expected: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("'{value}' is not {expected}"))
}

/// Whether the option of this name is a time: such a name ends with its unit, and who sets the
/// option changes how long the protocol waits.
#[must_use]
pub fn option_is_time(name: &str) -> bool {
    name.ends_with("_ms") || name.ends_with("_us")
}

/// Parses an option's value that is a number in a range. `unit` says of what, for people:
/// "milliseconds".
///
/// # Errors
/// With the range and the unit, when the value is no number or lies outside.
pub fn number_option(value: &str, low: u64, high: u64, unit: &str) -> Result<u64, String> {
    let expected = format!("a number of {unit} from {low} to {high}");
    let number: u64 = parse_option(value, &expected)?;
    if (low..=high).contains(&number) {
        Ok(number)
    } else {
        Err(format!("{number} is not {expected}"))
    }
}

/// The same for what is counted in memory.
///
/// # Errors
/// As [`number_option`], and when it is more than this machine can count.
pub fn size_option(value: &str, low: u64, high: u64, unit: &str) -> Result<usize, String> {
    let number = number_option(value, low, high, unit)?;
    usize::try_from(number).map_err(|_| format!("{number} {unit} do not fit this machine"))
}

/// Checks that a time is more than `times` times another; each is given with its option.
///
/// # Errors
/// When it is not.
pub fn check_longer(
    (name, time): (&str, Duration),
    times: u32,
    (other, than): (&str, Duration),
) -> Result<(), String> {
    if time > than * times {
        return Ok(());
    }
    let times = match times {
        2 => "twice",
        3 => "three times",
        _ => "many times",
    };
    Err(format!("{name} must be more than {times} {other}"))
}

/// Declares a protocol's options: a struct with a field for each, and [`Options`](crate::Options)
/// for it. The comment above a field is its help; ranges and accepted values are added to it.
///
/// | kind | field | option |
/// | --- | --- | --- |
/// | `millis(1..=9)`, `micros(1..=9)` | `Duration` | the field's name and `_ms` or `_us` |
/// | `bytes(1..=9)` | `usize` | the field's name, as below |
/// | `count(1..=9, "slots")` | `usize` | a number of something |
/// | `number(1..=9, "slots")` | `u64` | the same |
/// | `flag` | `bool` | `true` or `false` |
/// | `parsed(Type, function)` | `Type` | what the function reads; the help lists it |
///
/// `field as "name"` gives an option another name than its field. The last field may be the
/// injected bug. Further items of [`Options`](crate::Options) follow in a block of their own.
///
/// ```
/// # mod protocol {
/// # #[derive(Clone, Copy, Debug, Default, PartialEq)]
/// # pub struct Injected;
/// use quintet_replica::Options;
///
/// quintet_replica::options! {
///     /// What can be set.
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct Config {
///         /// how often an idle leader is heard, in
///         /// milliseconds
///         heartbeat: millis(1..=60_000) = 100,
///         /// the most messages that wait
///         window: count(1..=4096, "messages") = 64,
///         injected: Injected,
///     }
///     impl Options {
///         fn check(&self) -> Result<(), String> {
///             Ok(())
///         }
///     }
/// }
/// # }
/// use quintet_replica::Options;
/// let spec = protocol::Config::SPECS[0];
/// assert_eq!((spec.name, spec.default), ("heartbeat_ms", "100"));
/// assert_eq!(spec.help, "how often an idle leader is heard, in milliseconds (1 to 60000)");
/// let mut config = protocol::Config::default();
/// assert!(config.set("window", "0").is_err());
/// assert_eq!(config.set("window", "5").map(|()| config.window), Ok(5));
/// ```
#[macro_export]
macro_rules! options {
    (@type millis $($range:tt)*) => { ::core::time::Duration };
    (@type micros $($range:tt)*) => { ::core::time::Duration };
    (@type bytes $($range:tt)*) => { usize };
    (@type count $($range:tt)*) => { usize };
    (@type number $($range:tt)*) => { u64 };
    (@type flag) => { bool };
    (@type parsed ($type:ty, $parse:expr)) => { $type };

    (@name $kind:ident $field:ident $name:literal) => { $name };
    (@name millis $field:ident) => { concat!(stringify!($field), "_ms") };
    (@name micros $field:ident) => { concat!(stringify!($field), "_us") };
    (@name $kind:ident $field:ident) => { stringify!($field) };

    (@range flag) => { " (true or false)" };
    (@range parsed $($parse:tt)*) => { "" };
    (@range $kind:ident ($low:literal ..= $high:literal $(, $unit:literal)?)) => {
        concat!(" (", $low, " to ", $high, ")")
    };

    (@default millis $default:literal $($range:tt)*) => {
        ::core::time::Duration::from_millis($default)
    };
    (@default micros $default:literal $($range:tt)*) => {
        ::core::time::Duration::from_micros($default)
    };
    (@default parsed $default:literal ($type:ty, $parse:expr)) => {
        $parse($default).expect("the default is one of the accepted values")
    };
    (@default $kind:ident $default:literal $($range:tt)*) => { $default };

    (@parse $value:ident millis ($low:literal ..= $high:literal)) => {
        $crate::number_option($value, $low, $high, "milliseconds")
            .map(::core::time::Duration::from_millis)
    };
    (@parse $value:ident micros ($low:literal ..= $high:literal)) => {
        $crate::number_option($value, $low, $high, "microseconds")
            .map(::core::time::Duration::from_micros)
    };
    (@parse $value:ident bytes ($low:literal ..= $high:literal)) => {
        $crate::size_option($value, $low, $high, "bytes")
    };
    (@parse $value:ident count ($low:literal ..= $high:literal, $unit:literal)) => {
        $crate::size_option($value, $low, $high, $unit)
    };
    (@parse $value:ident number ($low:literal ..= $high:literal, $unit:literal)) => {
        $crate::number_option($value, $low, $high, $unit)
    };
    (@parse $value:ident flag) => { $crate::parse_option($value, "true or false") };
    (@parse $value:ident parsed ($type:ty, $parse:expr)) => { $parse($value) };

    (
        $(#[$about:meta])*
        $visible:vis struct $config:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident $(as $name:literal)?: $kind:ident $(($($range:tt)*))? = $default:literal,
            )+
            $(injected: $injected:ty,)?
        }
        impl Options { $($more:tt)* }
    ) => {
        $(#[$about])*
        $visible struct $config {
            $(
                $(#[doc = $help])+
                pub $field: $crate::options!(@type $kind $(($($range)*))?),
            )+
            $(
                /// The injected bug that is switched on, if one is.
                pub(super) injected: $injected,
            )?
        }

        impl Default for $config {
            fn default() -> Self {
                Self {
                    $($field: $crate::options!(@default $kind $default $(($($range)*))?),)+
                    $(injected: <$injected>::default(),)?
                }
            }
        }

        impl $crate::Options for $config {
            const SPECS: &'static [$crate::OptionSpec] = &[
                $($crate::OptionSpec {
                    name: $crate::options!(@name $kind $field $($name)?),
                    default: concat!($default),
                    help: concat!($($help,)+ $crate::options!(@range $kind $(($($range)*))?))
                        .trim_ascii_start(),
                },)+
                $(
                    #[cfg(feature = "bugs")]
                    <$injected>::SPEC,
                )?
            ];

            fn set(&mut self, name: &str, value: &str) -> Result<(), $crate::alloc::string::String> {
                $(if name == $crate::options!(@name $kind $field $($name)?) {
                    self.$field = $crate::options!(@parse value $kind $(($($range)*))?)?;
                    return Ok(());
                })+
                $(
                    #[cfg(feature = "bugs")]
                    if name == "bug" {
                        self.injected = <$injected>::parse(value)?;
                        return Ok(());
                    }
                )?
                Err($crate::alloc::format!("there is no option '{name}'"))
            }

            $($more)*
        }
    };
}
