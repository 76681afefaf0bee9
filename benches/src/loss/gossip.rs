//! Members that meet in pairs between the inner steps of a round, as nodes do.

use super::member::{Diverged, Member};
use anyhow::{Context, Result, ensure};
use starling_protocol::gossip::{GossipSpec, Meetings, Rule, Said};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, update};

/// The drifts of all members in one round.
pub struct Mixing {
    spec: GossipSpec,
    codec: Codec,
    drift: Vec<Vec<f32>>,
    momentum: Vec<Vec<f32>>,
    /// The meetings, as each member computes them.
    meetings: Vec<Meetings>,
    ids: Vec<NodeId>,
    made: u32,
}

impl Mixing {
    /// Two members code their exchange with `codec`.
    pub fn new(spec: GossipSpec, codec: Codec, members: usize, elements: usize) -> Self {
        let zeros = vec![vec![0.0; elements]; members];
        let ids = (0..members).map(|n| NodeId([n as u8 + 1; 32])).collect();
        Self { spec, codec, drift: zeros.clone(), momentum: zeros, meetings: Vec::new(), ids, made: 0 }
    }

    /// Begins a round. The seed and the round's number stand for the state at its beginning.
    pub fn begin(&mut self, seed: u64, round: usize) {
        let base = Digest::of("bench", &[&seed.to_le_bytes(), &(round as u64).to_le_bytes()]);
        let all = || Meetings::new(Digest::default(), base, self.ids.iter().copied());
        self.meetings = self.ids.iter().map(|_| all()).collect();
        self.drift.iter_mut().chain(&mut self.momentum).for_each(|vector| vector.fill(0.0));
        self.made = 0;
    }

    /// Makes the exchange that is due after `done` of `steps` steps, if there is one.
    pub fn after(&mut self, done: u32, steps: u32, members: &mut [Member], state: &[f32]) -> Result<()> {
        let due = self.made < self.spec.exchanges(steps) && self.spec.due(self.made + 1, steps, steps) == done;
        if !due {
            return Ok(());
        }
        self.made += 1;
        let mut said = Vec::new();
        for (member, drift) in members.iter_mut().zip(&self.drift) {
            let mut change = vec![0.0; state.len()];
            member.read(&mut change)?;
            change.iter_mut().zip(state).zip(drift).for_each(|((x, state), drift)| *x = *x - state - drift);
            said.push((self.over_the_wire(&change)?, self.over_the_wire(drift)?, change));
        }
        let rule = Rule::from(&self.spec);
        for me in 0..members.len() {
            let partner = self.meetings[me].next(&self.ids[me]);
            let other = partner.and_then(|partner| self.ids.iter().position(|id| *id == partner));
            let (drift, momentum) = (&mut self.drift[me], &mut self.momentum[me]);
            let of = |n: usize| said.get(n).map(|(change, drift, _)| Said { change, drift });
            let sound = match other.and_then(of) {
                Some(theirs) => rule.meet(drift, momentum, of(me).context("a member")?, theirs),
                None => rule.alone(drift, momentum, &said[me].2),
            };
            ensure!(sound, Diverged);
            let mixed: Vec<f32> = state.iter().zip(drift).map(|(state, drift)| state + *drift).collect();
            members[me].load(&mixed)?;
        }
        Ok(())
    }

    fn over_the_wire(&self, values: &[f32]) -> Result<Vec<f32>> {
        let mut decoded = vec![0.0; values.len()];
        update::decode(self.codec, &update::encode(self.codec, values)?, &mut decoded)?;
        Ok(decoded)
    }
}
