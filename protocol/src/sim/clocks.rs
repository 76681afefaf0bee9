//! Clocks that are behind when a process starts: the boot that it draws is below that of the start before. A node
//! ensures that its boot is above its vote state's incarnation, and knows nothing of its other starts.

use super::process::Node;
use super::world::{Event, World};

/// The time by which a clock goes on from one start to the next.
const BETWEEN_STARTS: u64 = 1 << 20;
/// A process renews its name less often than this, by one each time.
const RENEWALS: u64 = 1 << 10;
/// The most that a node puts between the boots of two starts when its clock is no help.
const APART: u64 = 1 << 16;

impl Node {
    /// The boot of the current start.
    pub(super) fn boot(&self) -> u64 {
        // The clock is behind by some starts; it never shows the same time twice.
        let clock = self.starts.saturating_sub(self.behind) * BETWEEN_STARTS + self.starts * RENEWALS;
        match &self.disk.vote_state {
            Some(vote_state) if clock <= vote_state.incarnation => {
                let apart = self.starts.wrapping_mul(0x9e37_79b9_7f4a_7c15) % APART;
                vote_state.incarnation + 1 + apart
            }
            _ => clock,
        }
    }
}

impl World {
    /// The process dies and comes back with a clock that is so many starts behind, until the next fault of this kind.
    /// Its disk may be empty, too.
    pub(super) fn set_clock_back(&mut self, node: usize, starts: u64, wipes: bool, back: u64) {
        self.marks.hit("clock behind at a start");
        self.nodes[node].behind = starts;
        if wipes {
            self.lose_disk(node, None, back);
        } else {
            self.crash(node, false);
            self.schedule(back, node, 0, Event::Start);
        }
    }
}
