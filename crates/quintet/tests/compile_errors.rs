//! The errors of the compiler for services that cannot be one.

use std::process::Command;

/// The compiler whose own words stand around ours in the expected texts.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn wrong_services_are_refused_with_the_reason() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
    if !version.as_ref().is_ok_and(|it| it.starts_with(COMPILER)) {
        return println!("skipped: the expected texts are those of {COMPILER}, not of {version:?}");
    }
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
