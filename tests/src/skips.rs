//! Tests that cannot run on this machine.

use std::fmt::Display;
use std::io::Write;

/// Tells that a test is left out, and why. Unlike what `println` and `eprintln` write, this is not captured: a skipped
/// test must not look like a passed one.
pub fn skipped(why: impl Display) {
    // A closed standard error changes no result.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
