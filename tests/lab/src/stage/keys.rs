//! Keys of nodes that a run file names: made before any node starts, so that a list of admission can hold their ids.

use crate::scenario::Scenario;
use anyhow::Context;
use starling_protocol::identity::{Ed25519Signer, Signer};
use starling_protocol::{Digest, NodeId};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use toml::{Table, Value};

/// The secret of a node of this name: for tests, and public.
fn secret(scenario: &Scenario, node: &str) -> [u8; 32] {
    Digest::of("starling lab key v1", &[scenario.name.as_bytes(), b"/", node.as_bytes()]).0
}

fn id(scenario: &Scenario, node: &str) -> NodeId {
    Ed25519Signer::from_secret(&secret(scenario, node)).id()
}

/// Replaces names of nodes, groups or sites in the run file by ids: in `creator` and in `admission.allow`.
pub fn put_ids(scenario: &Scenario, run: &mut Table) {
    if let Some(creator) = run.get_mut("creator") {
        let named = creator.as_str().and_then(|name| nodes(scenario, name).next());
        *creator = named.map_or(creator.clone(), |node| Value::String(id(scenario, node).to_string()));
    }
    let allow = run.get_mut("admission").and_then(|admission| admission.get_mut("allow"));
    let Some(allow) = allow.and_then(Value::as_array_mut) else { return };
    let ids = |entry: &Value| {
        let named: Vec<&str> = entry.as_str().into_iter().flat_map(|name| nodes(scenario, name)).collect();
        if named.is_empty() {
            return vec![entry.clone()];
        }
        named.into_iter().map(|node| Value::String(id(scenario, node).to_string())).collect()
    };
    *allow = allow.iter().flat_map(ids).collect();
}

/// Whether the run file names the node.
pub fn is_named(scenario: &Scenario, node: &str) -> bool {
    let allow = scenario.run.get("admission").and_then(|admission| admission.get("allow")).and_then(Value::as_array);
    let names = allow.into_iter().flatten().chain(scenario.run.get("creator")).filter_map(Value::as_str);
    names.into_iter().any(|name| nodes(scenario, name).any(|named| named == node))
}

/// Writes the node's key into its folder.
///
/// # Errors
/// If it cannot be written.
pub fn hand_out(scenario: &Scenario, node: &str, home: &Path) -> anyhow::Result<()> {
    let path = home.join("key");
    let written = || -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(home)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(&secret(scenario, node))
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// The nodes of a name.
fn nodes<'a>(scenario: &'a Scenario, name: &'a str) -> impl Iterator<Item = &'a str> {
    let seats = scenario.topology.seats.iter().filter(move |seat| !seat.bootstrap && seat.is_called(name));
    seats.map(|seat| seat.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_run_file_become_the_ids_of_the_keys_that_nodes_get() {
        let file = "end_s = 1\n[run]\ncreator = \"n-2\"\n[run.admission]\nmode = \"list\"\nallow = [\"n\", \"late\", \"00ff\"]\n\
                    [[nodes]]\nname = \"n\"\ncount = 2\n[[nodes]]\nname = \"late\"\nlater = true\n[[nodes]]\nname = \"x\"\n";
        let scenario = Scenario::parse(file, Path::new("keys.toml")).unwrap();
        let mut run = scenario.run.clone();
        put_ids(&scenario, &mut run);
        let ids = ["n-1", "n-2", "late"].map(|node| Value::String(id(&scenario, node).to_string()));
        assert_eq!(run["creator"], ids[1]);
        let listed = [ids.to_vec(), vec![Value::String("00ff".into())]].concat();
        assert_eq!(run["admission"]["allow"], Value::Array(listed));
        assert!(is_named(&scenario, "n-1") && is_named(&scenario, "late") && !is_named(&scenario, "x"));
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        hand_out(&scenario, "n-1", &home).unwrap();
        let key = starling_bootstrap::identity::load(&home.join("key")).unwrap();
        assert_eq!(Value::String(key.node_id().to_string()), ids[0]);
    }
}
