//! Evidence on disk: two envelopes for each node that has contradicted itself, so that the evidence counts after a
//! restart as before. The engine checks it again when it starts.
//!
//! `against 32 | length u32 | envelope | length u32 | envelope` for each, little endian, under one seal: at most
//! `EVIDENCE_MAX` of them.

use anyhow::{Context, ensure};
use starling_protocol::NodeId;
use starling_protocol::limits::{EVIDENCE_MAX, STATEMENT_BYTES_MAX};
use starling_protocol::message::Evidence;
use starling_store::{PrivateReader, Store};
use std::collections::BTreeMap;

/// Name of the file in the store.
const NAME: &str = "evidence";

/// Keeps evidence against a node; `None` drops what is kept against it.
///
/// # Errors
/// The disk failed or is full, or the file was damaged; a damaged file is removed, and the next evidence is kept.
pub fn keep(store: &Store, against: NodeId, evidence: Option<Evidence>) -> anyhow::Result<()> {
    let mut all = read(store)?;
    match evidence {
        Some(evidence) => drop(all.insert(against, evidence)),
        None if all.remove(&against).is_none() => return Ok(()),
        None => {}
    }
    let mut bytes = Vec::new();
    for (against, evidence) in &all {
        bytes.extend_from_slice(&against.0);
        for envelope in [&evidence.first, &evidence.second] {
            bytes.extend_from_slice(&(envelope.len() as u32).to_le_bytes());
            bytes.extend_from_slice(envelope);
        }
    }
    let mut file = store.write_private(NAME, bytes.len() as u64)?;
    file.write(&bytes)?;
    Ok(file.commit()?)
}

/// The evidence on disk; none, with a warning, if the file is damaged.
pub fn load(store: &Store) -> Vec<Evidence> {
    read(store).map(|all| all.into_values().collect()).unwrap_or_else(|e| {
        tracing::warn!("the evidence against other nodes is lost: {}", starling_words::of_chain(e.chain()));
        Vec::new()
    })
}

fn read(store: &Store) -> anyhow::Result<BTreeMap<NodeId, Evidence>> {
    let mut all = BTreeMap::new();
    let Some(mut file) = store.read_private(NAME)? else { return Ok(all) };
    while file.remaining() > 0 {
        ensure!(all.len() < EVIDENCE_MAX, "there is more of it than is ever kept");
        let mut against = [0; 32];
        file.read(&mut against)?;
        let (first, second) = (envelope(&mut file)?, envelope(&mut file)?);
        all.insert(NodeId(against), Evidence { first, second });
    }
    file.finish()?;
    Ok(all)
}

fn envelope(file: &mut PrivateReader) -> anyhow::Result<Vec<u8>> {
    let mut length = [0; 4];
    file.read(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).context("an envelope of no size that there is")?;
    ensure!(length <= STATEMENT_BYTES_MAX, "an envelope of {length} bytes");
    let mut bytes = vec![0; length];
    file.read(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_store::StoreOptions;
    use std::path::Path;

    fn store(dir: &Path) -> Store {
        let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
        Store::open(dir, options).expect("a folder of its own").store
    }

    fn evidence(fill: u8) -> Evidence {
        Evidence { first: vec![fill; 300], second: vec![fill; STATEMENT_BYTES_MAX] }
    }

    #[test]
    fn evidence_is_there_after_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let held = store(dir.path());
        assert!(load(&held).is_empty());
        for fill in 1..=3 {
            keep(&held, NodeId([fill; 32]), Some(evidence(fill))).expect("there is room");
        }
        keep(&held, NodeId([2; 32]), None).expect("there is room");
        keep(&held, NodeId([7; 32]), None).expect("nothing is to be done");
        keep(&held, NodeId([9; 32]), Some(evidence(9))).expect("there is room");
        drop(held);
        assert_eq!(load(&store(dir.path())), [evidence(1), evidence(3), evidence(9)]);
    }

    #[test]
    fn a_damaged_file_is_no_evidence() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = store(dir.path());
        let long = [&[7; 32][..], &(STATEMENT_BYTES_MAX as u32 + 1).to_le_bytes(), &[0; 2_000]].concat();
        for bytes in [vec![7; 31], vec![7; 40], long] {
            let mut file = store.write_private(NAME, bytes.len() as u64).expect("there is room");
            file.write(&bytes).expect("it is written");
            file.commit().expect("it is written");
            assert!(load(&store).is_empty(), "{} bytes", bytes.len());
        }
    }
}
