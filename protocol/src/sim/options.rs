//! The kinds of faults in a history, and their strength, all drawn from its seed.

use super::random::Random;
use crate::run::{AdmissionMode, Codec, Minority, SyncMode};
use crate::scale::{FULL, SMALL, Scale};
use std::fmt;

/// Microseconds.
pub const MS: u64 = 1_000;
pub const SECOND: u64 = 1_000_000;

/// One of so many seeds has a large flock, which takes as long as dozens of others.
const LARGE_IN: u64 = 200;

/// Options of one history. Each kind of fault is on with a probability of one half.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// Nodes that exist at the start; the others join later.
    pub first: usize,
    /// Nodes that found a lineage of their own.
    pub founders: usize,
    pub policy: Minority,
    pub grace: u64,
    pub codec: Codec,
    pub mode: SyncMode,
    /// Streaming: fragments, inner steps ahead, and the share that trainers keep of their own parameters.
    pub fragments: u32,
    pub overlap: u32,
    pub mixing: f64,
    pub ed25519: bool,
    pub admission: AdmissionMode,
    /// Rounds of probation in an open run.
    pub probation: u32,
    /// The run's creator revokes tickets and identities.
    pub revocations: bool,
    /// Operators amend the run, and the run has a creator whose word alone counts.
    pub amendments: bool,
    pub creator: bool,
    /// Rounds of the run; 0 = unbounded.
    pub rounds: u64,
    pub crashes: bool,
    /// A death of which no node is told: no connection closes.
    pub silent: bool,
    /// All processes die at once.
    pub blackouts: bool,
    pub wipes: bool,
    pub old_disks: bool,
    pub slow_disks: bool,
    pub pauses: bool,
    pub clock_jumps: bool,
    pub drops: bool,
    pub partitions: bool,
    pub one_way: bool,
    pub non_transitive: bool,
    pub clogs: bool,
    pub replays: bool,
    /// Percent of reductions that fail for some of their members.
    pub failing_reductions: u64,
    /// Percent of fetches and catch-ups that end without a result.
    pub failing_fetches: u64,
    pub hangs: bool,
    pub damage: bool,
    pub leaves: bool,
    /// Deaths right after a node said something in a vote, or decided, and links that stop at that moment.
    pub ambushes: bool,
    /// Percent of the statements of a vote that come late, and hold up all later messages.
    pub late_votes: u64,
    /// Members that lie about anything but their votes: the last so many nodes.
    pub liars: usize,
    /// Keys without a seat that forge any message that a peer can send.
    pub strangers: usize,
    /// Processes start with clocks that are behind.
    pub clocks_behind: bool,
    /// Nodes are also woken between the moments for which they ask, and nothing may happen then.
    pub probed: bool,
    /// The run's specification names the state that founders begin with.
    pub from_weights: bool,
    /// The run's task is external: some elements are of kind mean.
    pub external: bool,
    /// The flock chooses the inner steps of its rounds.
    pub adapts: bool,
    /// All nodes begin on a first record that names all of them.
    pub awake: bool,
    /// The sizes at which the flock becomes a grid.
    pub scale: Scale,
    /// Microseconds between two faults, on average.
    pub every: u64,
    /// The time when faults begin, and the time for which they go on.
    pub settled: u64,
    pub duration: u64,
    /// Mean one-way delay of a link; each direction draws its own around it.
    pub delay: u64,
    /// Bytes a second of each direction of a link.
    pub capacity: u64,
    /// Every message takes the mean delay, and disks take no time: for measuring.
    pub steady: bool,
    /// Percent of messages that a lossy link delays by a retransmission.
    pub loss: u64,
}

impl Options {
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed, "options");
        let nodes = random.between(1, 12) as usize;
        let mut on = || random.chance(50);
        let mut options = Self {
            crashes: on(),
            silent: on(),
            blackouts: on(),
            wipes: on(),
            old_disks: on(),
            slow_disks: on(),
            pauses: on(),
            clock_jumps: on(),
            drops: on(),
            partitions: on(),
            one_way: on(),
            non_transitive: on(),
            clogs: on(),
            replays: on(),
            failing_reductions: if on() { 20 } else { 0 },
            failing_fetches: if on() { 25 } else { 0 },
            hangs: on(),
            damage: on(),
            leaves: on(),
            ..Self::calm(nodes)
        };
        options.policy = random.pick(&[Minority::Fork, Minority::Wait, Minority::Halt]).unwrap_or(Minority::Fork);
        options.codec = random.pick(&[Codec::Int8, Codec::Bf16]).unwrap_or(Codec::Int8);
        if Random::new(seed, "mode").chance(20) {
            options.mode = SyncMode::EveryStep;
        }
        options.stream(&mut Random::new(seed, "streaming"));
        options.ed25519 = seed % 100 == 7;
        options.first = random.between(1, nodes as u64) as usize;
        options.rounds = if random.chance(5) { random.between(3, 20) } else { 0 };
        options.liars =
            if nodes >= 4 && random.chance(30) { random.between(1, (nodes / 4) as u64) as usize } else { 0 };
        options.every = random.between(300, 6_000) * MS;
        options.duration = random.between(15, 60) * SECOND;
        options.grace = random.between(5, 20) * SECOND;
        options.delay = if random.chance(70) { random.between(1, 50) } else { random.between(50, 300) } * MS;
        options.capacity = if random.chance(80) { 100 << 20 } else { random.between(32, 1024) << 10 };
        options.loss = if random.chance(50) { 0 } else { random.between(1, 10) };
        let mut profile = Random::new(seed, "profile");
        match profile.between(0, 99) {
            0..=19 => options.contend(&mut profile),
            20..=27 => options.split(&mut profile),
            28..=31 => options.pair(&mut profile),
            _ => {}
        }
        match profile.between(0, 99) {
            0..=9 => options.admission = AdmissionMode::List,
            10..=29 => (options.admission, options.revocations) = (AdmissionMode::Ticket, profile.chance(50)),
            _ => {}
        }
        let mut probation = Random::new(seed, "probation");
        if options.admission == AdmissionMode::Open && probation.chance(30) {
            options.probation = probation.between(1, 3) as u32;
        }
        if Random::new(seed, "large").between(0, LARGE_IN - 1) == 0 {
            options.gather(&mut Random::new(seed, "large flock"), None);
        }
        if Random::new(seed, "strangers").chance(25) {
            options.strangers = Random::new(seed, "number of strangers").between(1, 6) as usize;
        }
        options.clocks_behind = !options.awake && Random::new(seed, "clocks").chance(25);
        options.probed = Random::new(seed, "probes").chance(25);
        options.from_weights = Random::new(seed, "weights").chance(10);
        options.external = options.mode == SyncMode::Rounds && Random::new(seed, "task").chance(10);
        let plain = options.mode == SyncMode::Rounds && (options.fragments, options.overlap) == (1, 0);
        options.adapts = plain && !options.external && Random::new(seed, "inner steps").chance(15);
        if options.adapts {
            // A coarser one is there to choose.
            options.codec = Codec::Bf16;
        }
        let mut amending = Random::new(seed, "amendments");
        options.amendments = !options.awake && amending.chance(25);
        options.creator = options.amendments && amending.chance(70);
        // A run that is over goes on by an amendment.
        if options.amendments && amending.chance(20) {
            options.rounds = amending.between(3, 12);
        }
        if options.nodes <= 12 && Random::new(seed, "rows").chance(15) {
            options.line_up(&mut Random::new(seed, "rows of a small flock"));
        }
        options
    }

    /// A flock of several rows, although it is small.
    fn line_up(&mut self, random: &mut Random) {
        let nodes = random.between(8, 14) as usize;
        self.scale = SMALL;
        self.awake = random.chance(50);
        (self.nodes, self.founders) = (nodes, 1);
        self.first = if self.awake { nodes } else { random.between(4, nodes as u64) as usize };
        self.liars = if random.chance(40) { random.between(1, 2) as usize } else { 0 };
        self.clocks_behind &= !self.awake;
        self.amendments &= !self.awake;
        self.creator &= self.amendments;
        if self.awake {
            (self.admission, self.probation, self.revocations) = (AdmissionMode::Open, 0, false);
        }
    }

    /// Two voters, and at times a third node: no other node decides or remembers.
    fn pair(&mut self, random: &mut Random) {
        let nodes = if random.chance(80) { 2 } else { 3 };
        let mut on = || random.chance(50);
        *self = Self {
            ambushes: on(),
            crashes: true,
            silent: on(),
            blackouts: on(),
            partitions: on(),
            one_way: on(),
            wipes: on(),
            clogs: on(),
            pauses: on(),
            failing_reductions: if on() { 30 } else { 0 },
            failing_fetches: if on() { 40 } else { 0 },
            policy: self.policy,
            codec: self.codec,
            mode: self.mode,
            ed25519: self.ed25519,
            late_votes: random.between(0, 30),
            grace: random.between(1, 8) * SECOND,
            every: random.between(500, 4_000) * MS,
            settled: 5 * SECOND,
            duration: random.between(40, 70) * SECOND,
            delay: random.between(1, 100) * MS,
            ..Self::calm(nodes)
        };
    }

    /// Options of a history with the faults that large flocks meet, in a flock of `nodes` nodes.
    pub fn large(seed: u64, nodes: usize) -> Self {
        let mut options = Self::draw(seed);
        options.scale = FULL;
        options.gather(&mut Random::new(seed, "large flock"), Some(nodes));
        options
    }

    /// More nodes than may vote, and at times more than talk to each other all the time; or as many as are asked for.
    fn gather(&mut self, random: &mut Random, asked: Option<usize>) {
        let nodes = if random.chance(50) { random.between(40, 62) } else { random.between(63, 80) };
        let nodes = asked.map_or(nodes, |asked| asked as u64);
        let mut on = || random.chance(50);
        *self = Self {
            awake: true,
            crashes: true,
            silent: on(),
            wipes: on(),
            slow_disks: on(),
            pauses: on(),
            drops: on(),
            partitions: on(),
            non_transitive: on(),
            hangs: on(),
            failing_reductions: if on() { 10 } else { 0 },
            failing_fetches: if on() { 25 } else { 0 },
            policy: self.policy,
            codec: self.codec,
            grace: random.between(5, 10) * SECOND,
            every: random.between(200, 1_500) * MS,
            settled: 3 * SECOND,
            duration: random.between(10, 20) * SECOND,
            delay: random.between(5, 100) * MS,
            ..Self::calm(nodes as usize)
        };
    }

    /// Some runs step fragments, some of them with inner steps ahead; some step ahead only.
    fn stream(&mut self, random: &mut Random) {
        if self.mode == SyncMode::EveryStep || !random.chance(30) {
            return;
        }
        self.fragments = random.pick(&[1, 2, 3, 4, 9]).unwrap_or(1);
        self.overlap = if random.chance(60) { random.between(1, 4) as u32 } else { 0 };
        let alone = self.fragments == 1 && self.overlap > 0;
        self.mixing = if alone || random.chance(50) { 0.5 } else { 0.0 };
    }

    /// Voters that differ: some hold a result that the others cannot get, or hear of when they have made another. Their
    /// statements come late, and a voter that has spoken or decided dies of it. Votes that end in their first ballot
    /// would show little of the rules for later ballots.
    fn contend(&mut self, random: &mut Random) {
        let nodes = random.between(3, 5) as usize;
        *self = Self {
            policy: random.pick(&[Minority::Wait, Minority::Wait, Minority::Fork]).unwrap_or(Minority::Wait),
            codec: self.codec,
            mode: self.mode,
            fragments: self.fragments,
            overlap: self.overlap,
            mixing: self.mixing,
            ed25519: self.ed25519,
            replays: self.replays,
            slow_disks: self.slow_disks,
            ambushes: true,
            failing_reductions: random.between(10, 60),
            failing_fetches: if random.chance(50) { random.between(25, 75) } else { 0 },
            late_votes: random.between(10, 40),
            every: random.between(500, 3_000) * MS,
            // By then all vote.
            settled: random.between(5, 15) * SECOND,
            duration: random.between(40, 70) * SECOND,
            delay: random.between(10, 150) * MS,
            ..Self::calm(nodes)
        };
    }

    /// Partitions that last, and lineages that arise from them and meet again.
    fn split(&mut self, random: &mut Random) {
        let nodes = random.between(2, 5) as usize;
        *self = Self {
            codec: self.codec,
            mode: self.mode,
            fragments: self.fragments,
            overlap: self.overlap,
            mixing: self.mixing,
            ed25519: self.ed25519,
            crashes: self.crashes,
            wipes: self.wipes,
            partitions: true,
            non_transitive: self.non_transitive,
            failing_reductions: self.failing_reductions,
            grace: random.between(1, 4) * SECOND,
            every: random.between(4_000, 10_000) * MS,
            duration: random.between(40, 90) * SECOND,
            delay: random.between(1, 50) * MS,
            ..Self::calm(nodes)
        };
    }

    /// A history without faults.
    pub fn calm(nodes: usize) -> Self {
        Self {
            nodes,
            first: nodes,
            founders: 1,
            policy: Minority::Fork,
            grace: 10 * SECOND,
            codec: Codec::Int8,
            mode: SyncMode::Rounds,
            fragments: 1,
            overlap: 0,
            mixing: 0.0,
            ed25519: false,
            admission: AdmissionMode::Open,
            probation: 0,
            revocations: false,
            amendments: false,
            creator: false,
            rounds: 0,
            crashes: false,
            silent: false,
            blackouts: false,
            wipes: false,
            old_disks: false,
            slow_disks: false,
            pauses: false,
            clock_jumps: false,
            drops: false,
            partitions: false,
            one_way: false,
            non_transitive: false,
            clogs: false,
            replays: false,
            failing_reductions: 0,
            failing_fetches: 0,
            hangs: false,
            damage: false,
            leaves: false,
            ambushes: false,
            late_votes: 0,
            liars: 0,
            strangers: 0,
            clocks_behind: false,
            probed: false,
            from_weights: false,
            adapts: false,
            external: false,
            awake: false,
            scale: FULL,
            every: SECOND,
            settled: 0,
            duration: 0,
            delay: 20 * MS,
            capacity: 100 << 20,
            steady: false,
            loss: 0,
        }
    }

    /// The same history with fewer nodes.
    pub fn shrink(mut self, nodes: usize) -> Self {
        self.awake &= nodes >= self.nodes;
        self.nodes = nodes.max(1);
        self.first = self.first.min(self.nodes);
        self.founders = self.founders.min(self.nodes);
        self.liars = if self.nodes >= 4 { self.liars.min(self.nodes / 4) } else { 0 };
        self
    }

    fn switches(&self) -> [(&'static str, bool); 32] {
        [
            ("crashes", self.crashes),
            ("silent", self.silent),
            ("blackouts", self.blackouts),
            ("wipes", self.wipes),
            ("old-disks", self.old_disks),
            ("slow-disks", self.slow_disks),
            ("pauses", self.pauses),
            ("clock-jumps", self.clock_jumps),
            ("drops", self.drops),
            ("partitions", self.partitions),
            ("one-way", self.one_way),
            ("non-transitive", self.non_transitive),
            ("clogs", self.clogs),
            ("replays", self.replays),
            ("failing-reductions", self.failing_reductions > 0),
            ("failing-fetches", self.failing_fetches > 0),
            ("hangs", self.hangs),
            ("damage", self.damage),
            ("leaves", self.leaves),
            ("ambushes", self.ambushes),
            ("revocations", self.revocations),
            ("amendments", self.amendments),
            ("creator", self.creator),
            ("late-votes", self.late_votes > 0),
            ("clocks-behind", self.clocks_behind),
            ("strangers", self.strangers > 0),
            ("probed", self.probed),
            ("from-weights", self.from_weights),
            ("external", self.external),
            ("adapts", self.adapts),
            ("awake", self.awake),
            ("rows", self.scale != FULL),
        ]
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on: Vec<&str> = self.switches().iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        let Self { nodes, first, founders, policy, codec, mode, ed25519, admission, rounds, liars, loss, .. } = self;
        let Self { probation, fragments, overlap, mixing, .. } = self;
        write!(f, "nodes {nodes} (first {first}, founders {founders}, liars {liars}), minority {policy} after ")?;
        write!(
            f,
            "{} s, {mode}, {codec}, ed25519 {ed25519}, admission {admission}, probation {probation}, rounds {rounds}, ",
            self.grace / SECOND
        )?;
        write!(f, "fragments {fragments}, overlap {overlap}, mixing {mixing}, ")?;
        write!(f, "a fault each {} ms for {} s, ", self.every / MS, self.duration / SECOND)?;
        write!(f, "delay {} ms, {} KiB/s, loss {loss} %: {}", self.delay / MS, self.capacity >> 10, on.join(" "))
    }
}
