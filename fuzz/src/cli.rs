//! The program's own reading of configurations, compiled here: the program is no library. Host
//! names alone are not looked up.

#![allow(dead_code, unused_imports)]

#[path = "../../crates/quintet/src/cli/layout.rs"]
pub mod layout;
#[path = "../../crates/quintet/src/cli/origin.rs"]
pub mod origin;
#[path = "../../crates/quintet/src/cli/settings/mod.rs"]
pub mod settings;

fn resolve(text: &str) -> Option<std::net::SocketAddr> {
    text.parse().ok()
}
