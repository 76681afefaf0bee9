//! Amendments in a simulated run: operators hand them in, and the simulator remembers which.

use super::gate::CREATOR;
use super::world::World;
use crate::amendment::{Amendment, Changes};
use crate::engine::io::Input;
use crate::run::Minority;

impl World {
    /// The creator hands one node an amendment; in a run without a creator the operators of all nodes that run agree to
    /// it. It is to be in force `late` rounds later than it could, and says as much as `choice` does.
    pub(super) fn amend(&mut self, told: usize, choice: u64, late: u64) {
        let Some(record) = self.nodes[told].process.as_ref().and_then(|process| process.engine.head()) else { return };
        let from = if late == 0 { 0 } else { record.round.saturating_add(1 + late) };
        let shares = [1.0, 0.5, 0.25, 0.125];
        let share = shares[choice as usize % shares.len()];
        let mut changes = Changes { lr: Some(self.spec.inner.lr * share), ..Changes::default() };
        if choice.is_multiple_of(3) {
            changes.clip = Some(1.0);
        }
        let creator = self.spec.creator.is_some().then(|| self.keys.signer(CREATOR));
        // Of a fork at the end of the run only one side would go on.
        if self.options.rounds > 0 && creator.is_some() && self.options.policy != Minority::Fork {
            changes.rounds = Some(self.options.rounds + choice % 8);
        }
        let amendment = Amendment::next(&record.next.settings, from, changes);
        let amendment = creator.iter().fold(amendment, |plain, creator| plain.sign(creator.as_ref(), &self.run));
        self.gate.amendments.insert(amendment.name(&self.run));
        self.marks.hit("amendment handed in");
        let all = creator.is_none();
        let told: Vec<usize> = (0..self.nodes.len()).filter(|node| all || *node == told).collect();
        for node in told {
            if self.nodes[node].alive() {
                self.nodes[node].disk.amendment = Some(amendment.clone());
                self.feed(node, Input::Amend { amendment: amendment.clone() });
            }
        }
    }

    /// A node that starts again has the amendment that its operator handed in, unless the engine knows better.
    pub(super) fn amend_again(&mut self, node: usize) {
        if let Some(amendment) = self.nodes[node].disk.amendment.clone() {
            self.feed(node, Input::Amend { amendment });
        }
    }
}
