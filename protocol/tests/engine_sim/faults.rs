//! What goes wrong in a history, drawn from its seed.

use crate::random::Random;

/// Which kinds of faults a history has at all, and how wild it is.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// Nodes that found a lineage of their own.
    pub founders: usize,
    /// Nodes that exist at the start; the others join later.
    pub first: usize,
    /// At most a minority is away at any time, so that no two records may ever be committed at one place.
    pub strict: bool,
    pub kills: bool,
    /// A death that nobody is told of: no connection closes.
    pub silent: bool,
    pub wipes: bool,
    pub drops: bool,
    pub cuts: bool,
    pub freezes: bool,
    pub slow_disks: bool,
    pub failing_reductions: bool,
    pub leaves: bool,
    pub damage: bool,
    pub hangs: bool,
    pub everybody: bool,
    /// Microseconds between two faults, on average.
    pub every: u64,
    pub duration: u64,
    /// Longest one-way delay of a message.
    pub delay: u64,
}

impl Options {
    pub fn draw(random: &mut Random) -> Self {
        let strict = random.chance(60);
        let nodes = random.between(1, 6) as usize;
        Self {
            nodes,
            founders: if random.chance(10) { random.between(1, 3) as usize } else { 1 },
            first: random.between(1, nodes as u64) as usize,
            strict,
            kills: random.chance(75),
            silent: random.chance(30),
            wipes: !strict && random.chance(30),
            drops: random.chance(50),
            cuts: !strict && random.chance(30),
            freezes: random.chance(30),
            slow_disks: random.chance(20),
            failing_reductions: random.chance(30),
            leaves: random.chance(15),
            damage: !strict && random.chance(15),
            hangs: random.chance(10),
            everybody: random.chance(25),
            every: random.between(300, 6_000) * 1_000,
            duration: random.between(15, 60) * 1_000_000,
            delay: if random.chance(70) { random.between(1, 50) * 1_000 } else { random.between(50, 400) * 1_000 },
        }
    }

    /// Nothing goes wrong unless a test says so.
    pub fn calm(nodes: usize) -> Self {
        Self {
            nodes,
            founders: 1,
            first: nodes,
            strict: true,
            kills: false,
            silent: false,
            wipes: false,
            drops: false,
            cuts: false,
            freezes: false,
            slow_disks: false,
            failing_reductions: false,
            leaves: false,
            damage: false,
            hangs: false,
            everybody: false,
            every: 1_000_000,
            duration: 0,
            delay: 20_000,
        }
    }

    pub fn kinds(&self) -> Vec<Fault> {
        let all = [
            (self.kills, Fault::Kill),
            (self.drops, Fault::Drop),
            (self.cuts, Fault::Cut),
            (self.freezes, Fault::Freeze),
            (self.leaves, Fault::Leave),
            (self.damage, Fault::Damage),
            (self.hangs, Fault::Hang),
            (self.everybody, Fault::KillAll),
        ];
        all.into_iter().filter(|(on, _)| *on).map(|(_, fault)| fault).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Kill,
    Drop,
    Cut,
    Freeze,
    Leave,
    Damage,
    Hang,
    KillAll,
}
