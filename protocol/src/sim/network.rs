//! Connections and the links under them. A connection is ordered and loses nothing while it is up. A link only delays
//! it, or ends it, and each side learns of the end in its own time.

use super::options::Options;
use super::random::Random;
use super::{MS, SECOND};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Old bytes that a lying network keeps for each direction.
const REPLAY_MAX: usize = 24;

/// One direction between two nodes.
#[derive(Clone, Debug, Default)]
struct Link {
    mean: u64,
    /// The time when the bytes that were sent so far are through.
    busy_until: u64,
    blocked_until: u64,
    clogged_until: u64,
    old: VecDeque<Rc<Vec<u8>>>,
}

/// A connection: its arrivals rise in each direction; the direction from the lower node is first.
#[derive(Debug)]
struct Conn {
    id: u64,
    last: [u64; 2],
}

/// All links and connections.
#[derive(Debug)]
pub struct Network {
    nodes: usize,
    links: Vec<Link>,
    conns: BTreeMap<(usize, usize), Conn>,
    /// For each end, the connection that it believes in.
    believed: BTreeMap<(usize, usize), u64>,
    next: u64,
    capacity: u64,
    loss: u64,
    late_votes: u64,
    keep_old: bool,
    steady: bool,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub fn new(options: &Options, random: &mut Random) -> Self {
        let nodes = options.nodes;
        let link = |_| Link {
            mean: if options.steady {
                options.delay
            } else {
                random.between(options.delay / 2, options.delay * 3 / 2).max(200)
            },
            ..Link::default()
        };
        Self {
            nodes,
            links: (0..nodes * nodes).map(link).collect(),
            conns: BTreeMap::new(),
            believed: BTreeMap::new(),
            next: 0,
            capacity: options.capacity.max(1),
            loss: options.loss,
            late_votes: options.late_votes,
            keep_old: options.replays,
            steady: options.steady,
        }
    }

    fn link(&mut self, from: usize, to: usize) -> Option<&mut Link> {
        self.links.get_mut(from * self.nodes + to)
    }

    fn blocked(&self, from: usize, to: usize, now: u64) -> bool {
        self.links.get(from * self.nodes + to).is_none_or(|link| now < link.blocked_until)
    }

    /// Opens a connection; a handshake needs both directions.
    pub fn connect(&mut self, a: usize, b: usize, now: u64) -> Option<u64> {
        if self.conns.contains_key(&pair(a, b)) || self.blocked(a, b, now) || self.blocked(b, a, now) {
            return None;
        }
        self.next += 1;
        self.conns.insert(pair(a, b), Conn { id: self.next, last: [0; 2] });
        Some(self.next)
    }

    /// Takes the connection down; messages on their way are lost.
    pub fn close(&mut self, a: usize, b: usize) -> Option<u64> {
        self.conns.remove(&pair(a, b)).map(|conn| conn.id)
    }

    /// Messages from `from` to `to` are lost until then. The connection, if there is one, will end.
    pub fn block(&mut self, from: usize, to: usize, until: u64) -> Option<u64> {
        let link = self.link(from, to)?;
        link.blocked_until = link.blocked_until.max(until);
        self.conns.get(&pair(from, to)).map(|conn| conn.id)
    }

    pub fn clog(&mut self, from: usize, to: usize, until: u64) {
        if let Some(link) = self.link(from, to) {
            link.clogged_until = until;
        }
    }

    /// Ends all blocks, delays and losses.
    pub fn heal(&mut self) {
        for link in &mut self.links {
            (link.blocked_until, link.clogged_until, link.busy_until) = (0, 0, 0);
            link.old.clear();
        }
        (self.loss, self.late_votes, self.keep_old, self.capacity) = (0, 0, false, 100 << 20);
    }

    pub fn is(&self, a: usize, b: usize, id: u64) -> bool {
        self.conns.get(&pair(a, b)).is_some_and(|conn| conn.id == id)
    }

    /// Whether both directions work.
    pub fn open(&self, a: usize, b: usize, now: u64) -> bool {
        !self.blocked(a, b, now) && !self.blocked(b, a, now)
    }

    /// The connection between two nodes; 0 for none.
    pub fn id(&self, a: usize, b: usize) -> u64 {
        self.conns.get(&pair(a, b)).map_or(0, |conn| conn.id)
    }

    pub fn connected(&self, a: usize, b: usize) -> bool {
        self.conns.contains_key(&pair(a, b))
    }

    /// The time when a message arrives, and its connection; None if it is lost, and the connection with it.
    pub fn post(
        &mut self,
        from: usize,
        to: usize,
        bytes: &Rc<Vec<u8>>,
        now: u64,
        random: &mut Random,
    ) -> Option<(u64, u64)> {
        let believed = *self.believed.get(&(from, to))?;
        if self.blocked(from, to, now) {
            return None;
        }
        let (capacity, loss, keep, steady) = (self.capacity, self.loss, self.keep_old, self.steady);
        let late = self.late_votes;
        let link = self.link(from, to)?;
        if keep {
            link.old.push_back(Rc::clone(bytes));
            if link.old.len() > REPLAY_MAX {
                link.old.pop_front();
            }
        }
        link.busy_until = link.busy_until.max(now) + bytes.len() as u64 * SECOND / capacity;
        let flight = if steady { link.mean } else { random.delay(link.mean) };
        let mut at = link.busy_until.max(link.clogged_until) + flight;
        while loss > 0 && random.chance(loss) {
            // A retransmission holds up all later messages.
            at += 200 * MS + 2 * link.mean;
        }
        if late > 0 && matches!(kind(bytes), "estimate" | "vote") && random.chance(late) {
            at += random.between(300, 2_500) * MS;
        }
        let conn = self.conns.get_mut(&pair(from, to)).filter(|conn| conn.id == believed)?;
        let last = conn.last.get_mut(usize::from(from > to))?;
        *last = at.max(*last + 1);
        Some((conn.id, *last))
    }

    /// A message that `from` once sent to `to`.
    pub fn old(&self, from: usize, to: usize, random: &mut Random) -> Option<Rc<Vec<u8>>> {
        let old = &self.links.get(from * self.nodes + to)?.old;
        old.get((random.draw() as usize).checked_rem(old.len())?).cloned()
    }

    pub fn round_trip(&self, a: usize, b: usize) -> u64 {
        let mean = |from: usize, to: usize| self.links.get(from * self.nodes + to).map_or(0, |link| link.mean);
        mean(a, b) + mean(b, a)
    }

    /// Tells `at` of a connection to `other`; true if it has to hear of the end of another one first.
    pub fn learn_up(&mut self, at: usize, other: usize, id: u64) -> bool {
        self.believed.insert((at, other), id).is_some()
    }

    /// Tells `at` of the end of a connection; false if it has since learnt of another.
    pub fn learn_down(&mut self, at: usize, other: usize, id: u64) -> bool {
        let same = self.believed.get(&(at, other)) == Some(&id);
        if same {
            self.believed.remove(&(at, other));
        }
        same
    }

    /// Whether `at` believes to be connected, and is.
    pub fn believes(&self, at: usize, other: usize) -> bool {
        let conn = self.conns.get(&pair(at, other)).map(|conn| conn.id);
        conn.is_some() && self.believed.get(&(at, other)).copied() == conn
    }

    /// The number of connections so far.
    pub fn connections(&self) -> u64 {
        self.next
    }

    /// Whether both ends believe in a connection that was among the first so many.
    pub fn stands_since(&self, a: usize, b: usize, connections: u64) -> bool {
        let old = self.conns.get(&pair(a, b)).is_some_and(|conn| conn.id <= connections);
        old && self.believes(a, b) && self.believes(b, a)
    }

    /// The time when all messages that a node has sent so far have arrived.
    pub fn drained(&self, from: usize) -> u64 {
        let sent = |((a, b), conn): (&(usize, usize), &Conn)| match (*a == from, *b == from) {
            (true, _) => Some(conn.last[0]),
            (_, true) => Some(conn.last[1]),
            _ => None,
        };
        self.conns.iter().filter_map(sent).max().unwrap_or(0)
    }

    /// Forgets the beliefs of a dead process.
    pub fn forget(&mut self, node: usize) {
        self.believed.retain(|(at, _), _| *at != node);
    }

    pub fn neighbours(&self, node: usize) -> BTreeSet<usize> {
        let other = |(a, b): &(usize, usize)| (*a == node).then_some(*b).or((*b == node).then_some(*a));
        self.conns.keys().filter_map(other).collect()
    }
}

/// Offset of a message's kind in its bytes, behind the envelope's header.
const TAG: usize = 38;

/// The kind of a control message: for traces, and for checks that look into some kinds only.
pub fn kind(bytes: &[u8]) -> &'static str {
    const KINDS: [&str; 18] = [
        "",
        "hello",
        "head",
        "join",
        "ready",
        "",
        "",
        "leave",
        "estimate",
        "vote",
        "certificate",
        "witness",
        "fork",
        "start",
        "evidence",
        "alive",
        "amend",
        "want",
    ];
    bytes.get(TAG).and_then(|tag| KINDS.get(usize::from(*tag))).copied().unwrap_or("nothing known")
}
