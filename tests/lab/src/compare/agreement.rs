//! Checks whether peers hold the mean after an averaging, by the parameters that they wrote before and after it.

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The result for the averagings of all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Agreement {
    /// Averagings that all peers wrote down.
    pub averagings: usize,
    /// Number of averagings after which some peer was off the mean by more than a twentieth of the peers' spread
    /// before: the peers did not all average with each other, or the averaging did nothing.
    pub missed: usize,
    /// The largest difference between a peer's parameter afterwards and the mean of all before, over the averagings
    /// that were not missed, or over all if each was missed.
    pub from_mean: f64,
    /// The largest difference between two peers' parameters afterwards, over the same averagings.
    pub between_peers: f64,
    /// The largest difference between two peers' parameters before, over the same averagings.
    pub before: f64,
}

/// Compares the files EPOCH-INDEX.f32 of a folder, each the parameters before and after, of epochs that all peers have.
pub fn read(folder: &Path, nodes: usize) -> Option<Agreement> {
    let mut epochs: BTreeMap<u64, Vec<Vec<f32>>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((epoch, _)) = name.strip_suffix(".f32").and_then(|stem| stem.split_once('-')) else { continue };
        let (Ok(epoch), Ok(bytes)) = (epoch.parse(), std::fs::read(entry.path())) else { continue };
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        epochs.entry(epoch).or_default().push(values);
    }
    let whole = epochs.into_values().filter(|peers| peers.len() == nodes && alike(peers));
    let found: Vec<Agreement> = whole.map(|peers| compare(&peers)).collect();
    let missed = found.iter().filter(|a| a.missed > 0).count();
    let held = found.iter().filter(|a| a.missed == 0 || missed == found.len());
    let most = |of: fn(&Agreement) -> f64| held.clone().map(of).fold(0.0, f64::max);
    (!found.is_empty()).then(|| Agreement {
        averagings: found.len(),
        missed,
        from_mean: most(|a| a.from_mean),
        between_peers: most(|a| a.between_peers),
        before: most(|a| a.before),
    })
}

fn alike(peers: &[Vec<f32>]) -> bool {
    peers.iter().all(|values| values.len() == peers[0].len() && values.len().is_multiple_of(2) && !values.is_empty())
}

fn compare(peers: &[Vec<f32>]) -> Agreement {
    let count = peers[0].len() / 2;
    let mut found = Agreement { averagings: 1, ..Agreement::default() };
    for at in 0..count {
        let before = || peers.iter().map(|values| f64::from(values[at]));
        let after = || peers.iter().map(|values| f64::from(values[count + at]));
        let mean = before().sum::<f64>() / peers.len() as f64;
        let furthest = after().map(|value| (value - mean).abs()).fold(0.0, f64::max);
        let spread = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
            high - low
        };
        found.from_mean = found.from_mean.max(furthest);
        found.between_peers = found.between_peers.max(spread(&mut after()));
        found.before = found.before.max(spread(&mut before()));
    }
    // Peers that share one set of parameters from the beginning have no spread before, and miss nothing.
    found.missed = usize::from(found.from_mean > found.before / 20.0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, name: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(folder.join(name), bytes).unwrap();
    }

    #[test]
    fn the_mean_is_what_peers_had_before() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), 2), None);
        // Two values before, two after: the second peer is half a unit off in the last one.
        put(folder.path(), "1-0.f32", &[1.0, 4.0, 2.0, 6.0]);
        put(folder.path(), "1-1.f32", &[3.0, 8.0, 2.0, 6.5]);
        put(folder.path(), "2-0.f32", &[9.0, 9.0]);
        put(folder.path(), "3-0.f32", &[1.0, 1.0]);
        put(folder.path(), "3-1.f32", &[1.0]);
        put(folder.path(), "notes.txt", &[1.0]);
        let found = read(folder.path(), 2).expect("epoch 1");
        assert_eq!(found, Agreement { averagings: 1, missed: 1, from_mean: 0.5, between_peers: 0.5, before: 4.0 });
        // All peers hold the mean, within a rounding; from here on only such averagings count.
        put(folder.path(), "4-0.f32", &[1.0, 4.0, 2.0, 6.0]);
        put(folder.path(), "4-1.f32", &[3.0, 8.0, 2.0, 6.125]);
        let found = read(folder.path(), 2).expect("epochs 1 and 4");
        assert_eq!(found, Agreement { averagings: 2, missed: 1, from_mean: 0.125, between_peers: 0.125, before: 4.0 });
    }
}
