//! Behaviour vectors: `protocol/vectors/*.json`, with which a program that was written from `docs/protocol/` alone can
//! be checked. Each file is made again from the code here, and has to be the same.
//!
//! `STARLING_VECTORS=write` rewrites the files instead: only when a change of the protocol is meant.

mod ballot;
mod control;
mod fields;
mod grid;
#[cfg(feature = "mutations")]
mod injected;
mod json;
mod lattice;
mod leases;
mod made;
mod membership;
mod outer;
mod owners;
mod quorum;
mod records;
mod reduction;
mod ring;
mod session;

use json::Json;
use std::path::Path;

/// The most bytes of a file: a person reads it.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// Compares the code's result with the file of this name, or writes the file.
fn check(name: &str, subject: Json) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    let text = subject.text();
    assert!(text.len() <= FILE_BYTES_MAX, "{name} would have {} bytes, more than {FILE_BYTES_MAX}", text.len());
    if std::env::var_os("STARLING_VECTORS").is_some_and(|wish| wish == "write") {
        return std::fs::write(&path, text).expect("the checkout can be written");
    }
    let file = std::fs::read_to_string(&path).expect("the file is in the checkout");
    let differs = text.lines().zip(file.lines()).position(|(code, file)| code != file);
    let at = differs.unwrap_or_else(|| text.lines().count().min(file.lines().count()));
    let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
    assert!(
        text == file,
        "{name}, line {}: the code gives\n{}\nand the file has\n{}\nIf the protocol was meant to change, run this test \
         with STARLING_VECTORS=write",
        at + 1,
        line(&text),
        line(&file)
    );
}

#[test]
fn records_are_those_of_the_file() {
    check("records.json", records::subject());
}

#[test]
fn ways_in_rows_are_those_of_the_file() {
    check("lattice.json", lattice::subject());
}

#[test]
fn membership_is_that_of_the_file() {
    check("membership.json", membership::subject());
}

#[test]
fn cells_are_those_of_the_file() {
    check("grid.json", grid::subject());
}

#[test]
fn chosen_steps_are_those_of_the_file() {
    check("control.json", control::subject());
}

#[test]
fn leases_and_the_sample_order_are_those_of_the_file() {
    check("leases.json", leases::subject());
}

#[test]
fn sets_and_quorums_are_those_of_the_file() {
    check("quorum.json", quorum::subject());
}

#[test]
fn rings_are_those_of_the_file() {
    check("ring.json", ring::subject());
}

#[test]
fn owners_are_those_of_the_file() {
    check("owners.json", owners::subject());
}

#[test]
fn reductions_are_those_of_the_file() {
    check("reduction.json", reduction::subject());
}

#[test]
fn outer_steps_and_roots_are_those_of_the_file() {
    check("outer.json", outer::subject());
}

#[test]
fn ballots_are_those_of_the_file() {
    check("ballot.json", ballot::subject());
}

#[test]
fn a_session_is_that_of_the_file() {
    check("session.json", session::subject());
}
