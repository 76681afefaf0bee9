//! Checks the dependencies: no version with a known hole, no banned crate, no licence that we have not accepted.
//!
//! Advisory databases may be out of reach where this test runs, and the public one lacks the network stack's newest
//! entries, so the floor is kept here by hand. `deny.toml` has the same rules for `cargo deny`; the tests read it, so
//! that they hold where that tool is not installed.

mod repository;

use cargo_metadata::semver::Version;
use std::collections::BTreeSet;
use std::fs;

/// A crate and its sound release lines.
struct Floor {
    name: &'static str,
    /// First sound version of each line that has one, rising. A version is sound when it is not below the newest of
    /// these with its own `major.minor` (`major` from 1.0 on), or not below the last.
    sound: &'static [&'static str],
    why: &'static str,
}

const fn floor(name: &'static str, sound: &'static [&'static str], why: &'static str) -> Floor {
    Floor { name, sound, why }
}

/// Reviewed 2026-11 against RustSec and GitHub's advisories.
const FLOORS: &[Floor] = &[
    floor("libp2p", &["0.45.1"], "RUSTSEC-2022-0084: peers exhaust memory"),
    floor("libp2p-core", &["0.30.2", "0.31.1"], "RUSTSEC-2022-0009: a signed record of another peer is taken"),
    floor("libp2p-gossipsub", &["0.50.1"], "GHSA-vrx6-jcp8-vm7m, GHSA-g3g5-x568-qvqx: PRUNE and GRAFT of any topic"),
    floor("libp2p-quic", &["0.13.1"], "GHSA-5hq8-qhww-jm7q: a certificate panics the node"),
    floor("libp2p-rendezvous", &["0.17.1"], "GHSA-cqfx-gf56-8x59: registrations without bound"),
    floor("yamux", &["0.13.10"], "CVE-2026-32314, GHSA-4w32-2493-32g7: one frame panics the node"),
    floor("quinn-proto", &["0.11.15"], "RUSTSEC-2026-0185: memory exhaustion by gaps"),
    floor("hickory-proto", &["0.26.1"], "RUSTSEC-2026-0118, -0119"),
    floor("snow", &["0.9.5"], "RUSTSEC-2024-0011: nonces advanced by unauthenticated bytes"),
    floor("rustls", &["0.23.18"], "RUSTSEC-2024-0399: a hello panics the server"),
    floor("rustls-webpki", &["0.103.13"], "name constraints and revocation lists not honoured"),
    floor("ring", &["0.17.12"], "RUSTSEC-2025-0009: a QUIC packet panics the node"),
    floor("bytes", &["1.11.1"], "integer overflow in reserve"),
    floor("tokio", &["1.44.2"], "RUSTSEC-2025-0023: broadcast clones without Sync"),
    floor("crossbeam-channel", &["0.5.15"], "RUSTSEC-2025-0024: double free on drop"),
    floor("crossbeam-epoch", &["0.9.20"], "unsound pointers"),
    floor("lru", &["0.18.2"], "use after free"),
    floor("tracing-subscriber", &["0.3.20"], "RUSTSEC-2025-0055: terminal escapes in peers' strings"),
    floor("lz4_flex", &["0.12.1"], "bad input leaks old buffers"),
    floor("tar", &["0.4.45"], "unpacks outside its folder"),
    floor("rocksdb", &["0.19.0"], "RUSTSEC-2022-0046: out-of-bounds read"),
    floor("rand", &["0.9.3", "0.10.1"], "RUSTSEC-2026-0097: unsound with a custom logger"),
];

impl Floor {
    fn holds(&self, version: &Version) -> bool {
        let line = |v: &Version| if v.major == 0 { (0, v.minor) } else { (v.major, 0) };
        let sound: Vec<Version> = self.sound.iter().map(|s| Version::parse(s).expect("a version")).collect();
        match sound.iter().rfind(|s| line(s) == line(version)) {
            Some(first) => version >= first,
            None => sound.last().is_some_and(|last| version >= last),
        }
    }
}

/// Names and versions in a lock file.
fn locked(lock: &str) -> Vec<(String, Version)> {
    let lock: toml::Table = lock.parse().expect("Cargo.lock is TOML");
    let packages = lock["package"].as_array().expect("Cargo.lock lists packages");
    let text = |package: &toml::Value, key: &str| package[key].as_str().expect("a string").to_owned();
    let version = |package| Version::parse(&text(package, "version")).expect("a version");
    packages.iter().map(|package| (text(package, "name"), version(package))).collect()
}

/// Every locked version below its floor, as text.
fn below_floor(lock: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, version) in locked(lock) {
        for floor in FLOORS.iter().filter(|f| f.name == name && !f.holds(&version)) {
            found.push(format!("{name} {version} is below {}: {}", floor.sound.join(" / "), floor.why));
        }
    }
    found
}

/// Every locked crate of a list of banned ones.
fn banned<'a>(lock: &str, names: &'a BTreeSet<String>) -> Vec<&'a str> {
    let locked: BTreeSet<String> = locked(lock).into_iter().map(|(name, _)| name).collect();
    names.iter().filter(|name| locked.contains(*name)).map(String::as_str).collect()
}

/// Whether the accepted licences satisfy a licence expression. Old manifests write `/` for OR.
fn accepted(expression: &str, licences: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    // An exception only adds permissions, so it may be accepted by name or be left out.
    let mut words = spaced.split_whitespace().peekable();
    let met = any_of(&mut words, licences);
    met && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words, licences: &BTreeSet<String>) -> bool {
    let mut met = all_of(words, licences);
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, licences);
    }
    met
}

fn all_of(words: &mut Words, licences: &BTreeSet<String>) -> bool {
    let mut met = one(words, licences);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, licences);
    }
    met
}

fn one(words: &mut Words, licences: &BTreeSet<String>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any_of(words, licences);
        return words.next_if_eq(&")").is_some() && met;
    }
    let met = words.next().is_some_and(|licence| licences.contains(licence));
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    met
}

fn lock() -> String {
    fs::read_to_string(repository::root().join("Cargo.lock")).expect("Cargo.lock is kept")
}

/// A list of strings, or the `crate` entries of a list of tables, in `deny.toml`.
fn deny(section: &str, key: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(repository::root().join("deny.toml")).expect("deny.toml is kept");
    let deny: toml::Table = text.parse().expect("deny.toml is TOML");
    let list = deny[section][key].as_array().expect("a list");
    let name = |entry: &toml::Value| entry.as_str().or_else(|| entry.get("crate")?.as_str()).map(str::to_owned);
    list.iter().map(|entry| name(entry).expect("a string, or a table with a crate")).collect()
}

#[test]
fn no_version_is_below_its_floor() {
    assert_eq!(below_floor(&lock()), Vec::<String>::new());
    let present = locked(&lock()).iter().filter(|(name, _)| FLOORS.iter().any(|f| f.name == name)).count();
    assert!(present >= 10, "the floors do not name what is locked any more");
}

#[test]
fn an_old_version_in_a_lock_is_found() {
    let lock = "version = 4\n[[package]]\nname = \"yamux\"\nversion = \"0.13.9\"\n";
    assert_eq!(
        below_floor(lock),
        ["yamux 0.13.9 is below 0.13.10: CVE-2026-32314, GHSA-4w32-2493-32g7: one frame panics the node"]
    );
    // Both versions of a crate count, and a newer line does not excuse an older one.
    let two =
        "[[package]]\nname = \"yamux\"\nversion = \"0.12.1\"\n[[package]]\nname = \"yamux\"\nversion = \"0.14.1\"\n";
    assert_eq!(below_floor(two).len(), 1);
    assert_eq!(below_floor(&lock.replace("0.13.9", "0.13.10")), Vec::<String>::new());
}

#[test]
fn a_line_has_its_own_floor() {
    let rand = FLOORS.iter().find(|f| f.name == "rand").expect("rand has a floor");
    let holds = |version: &str| rand.holds(&Version::parse(version).expect("a version"));
    assert!(holds("0.9.3") && holds("0.9.5") && holds("0.10.1") && holds("0.11.0"));
    assert!(!holds("0.8.9") && !holds("0.9.2") && !holds("0.10.0"));
}

#[test]
fn no_banned_crate_is_locked() {
    let names = deny("bans", "deny");
    assert!(names.contains("openssl") && names.contains("native-tls"));
    assert_eq!(banned(&lock(), &names), Vec::<&str>::new());
    let injected = "[[package]]\nname = \"openssl\"\nversion = \"0.10.70\"\n";
    assert_eq!(banned(injected, &names), ["openssl"]);
}

#[test]
fn every_licence_is_accepted() {
    let licences = deny("licenses", "allow");
    let mut found = Vec::new();
    for package in repository::metadata().packages {
        let expression = package.license.clone().unwrap_or_default();
        if !accepted(&expression, &licences) {
            found.push(format!("{} {}: {expression:?}", package.name, package.version));
        }
    }
    assert_eq!(found, Vec::<String>::new(), "add to deny.toml what is fine, or drop the crate");
}

#[test]
fn licence_expressions_are_understood() {
    let licences = ["MIT", "Apache-2.0"].map(str::to_owned).into();
    for good in [
        "MIT",
        "MIT/GPL-3.0",
        "GPL-3.0 OR MIT",
        "(GPL-3.0 OR MIT) AND Apache-2.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
    ] {
        assert!(accepted(good, &licences), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT AND (GPL-3.0 OR BSL-1.1)", "(MIT", "MIT Apache-2.0"] {
        assert!(!accepted(bad, &licences), "{bad:?}");
    }
}
