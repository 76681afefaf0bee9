//! Owners of chunks (`docs/protocol/3-reduction.md` §3.5.1, §3.5.2).

use crate::json::{Json, object};
use crate::made::id;
use starling_protocol::NodeId;
use starling_protocol::update::owners::Owners;

const SHARES: &str = "docs/protocol/3-reduction.md §3.5.1";
const ABSENT: &str = "docs/protocol/3-reduction.md §3.5.2";

/// The flock, by ascending id.
fn flock(kbps: &[u32]) -> Vec<(NodeId, u32)> {
    kbps.iter().enumerate().map(|(place, kbps)| (id(0x10 * (place as u8 + 1)), *kbps)).collect()
}

/// The chunks of each member when all contribute.
fn shares(kbps: &[u32], chunks: usize) -> Json {
    let owners = Owners::new(kbps, chunks);
    let counts: Vec<usize> = (0..kbps.len()).map(|place| owners.chunks(place).len()).collect();
    object! {"section": SHARES, "upload_kbps": kbps.to_vec(), "chunks": chunks, "owned": counts}
}

/// The owner of each chunk when only some contribute.
fn without(kbps: &[u32], contributors: &[usize], chunks: usize) -> Json {
    let flock = flock(kbps);
    let here: Vec<NodeId> = contributors.iter().map(|place| flock[*place].0).collect();
    let owners = Owners::among(&flock, &here, chunks);
    let owner = |chunk| contributors[owners.owner(chunk).expect("each chunk has one")];
    object! {
        "section": ABSENT, "members": flock.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        "upload_kbps": kbps.to_vec(), "contributors": contributors.to_vec(), "chunks": chunks,
        "owners": (0..chunks).map(owner).collect::<Vec<_>>(),
    }
}

pub fn subject() -> Json {
    let about = "Members stand by ascending id. `owned` counts each member's chunks, which are contiguous, in that order. \
                 Contributors and owners are places in the list of members.";
    object! {
        "about": about,
        "shares": vec![
            shares(&[0], 5), shares(&[0, 0, 0], 10), shares(&[100, 300], 10), shares(&[100, 0], 9),
            shares(&[100, 100, 100], 100), shares(&[1_000, 100, 100], 100), shares(&[1_000, 100, 100, 100], 100),
            shares(&[100, 900, 0, 50], 100), shares(&[1_000, 900, 20, 10, 10], 101), shares(&[20, 1_000, 10, 900, 0], 101),
            shares(&[100_000, 1, 1, 1, 1, 1], 64), shares(&[300, 200, 100], 7), shares(&[7, 7, 7, 7], 2),
            shares(&[16_000, 20_000, 25_000, 4_000, 0, 12_000, 18_000, 90_000], 513),
        ],
        "absent": vec![
            without(&[100, 100, 100, 100], &[0, 1, 2, 3], 16), without(&[100, 100, 100, 100], &[0, 2, 3], 16),
            without(&[100, 100, 100, 100], &[0, 3], 16), without(&[300, 200, 100], &[1, 2], 12),
            without(&[300, 200, 100], &[2], 12),
        ],
    }
}
