//! How much a peer may say: so many messages and bytes at once, and so many a second after that. What a member says above that
//! is read later. Of a stranger the newest is heard, since what it says supersedes what it said before (where it stands,
//! that it would like to join), and one that says more than even a member may is sent away.

use starling_protocol::limits::STATE_CHUNK_BYTES;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// What saying something costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub messages: u32,
    pub bytes: usize,
}

/// A new session of a stranger costs its address as much as so many messages: both sides greet, and the node takes it in.
pub const SESSION: Cost = Cost { messages: 8, bytes: 4096 };

/// Messages that a member may send at once, and a second in the long run.
const MEMBER: (f64, f64) = (1024.0, 256.0);
/// The same of a stranger. Its Hello fits in, and five Heads and Joins a second, which is as many as who is no member says.
const STRANGER: (f64, f64) = (64.0, 16.0);
const STRANGER_BYTES: (f64, f64) = (64.0 * 1024.0, 16.0 * 1024.0);
/// And of all strangers at one address. A message costs some 0.1 ms in all, most of it the check of its signature.
const ADDRESS: (f64, f64) = (512.0, 64.0);
const ADDRESS_BYTES: (f64, f64) = (512.0 * 1024.0, 128.0 * 1024.0);
/// What fetches cost the node that serves them, in processor time: one new stream, one request beside what looking it up takes, which is
/// measured, and a mebibyte that is sent. As `bench-fetch` measures them on a machine that is busy; on an idle one they are a third less.
pub const STREAM_WORK: Duration = Duration::from_micros(170);
pub const REQUEST_WORK: Duration = Duration::from_micros(120);
const MIB_WORK: Duration = Duration::from_micros(3000);
/// Looking up a chunk of the state, which is read and checked: the time is measured, and this is the most that it ought to be.
const LOOKUP_WORK: Duration = Duration::from_micros(1000);
const MIB: f64 = 1024.0 * 1024.0;
/// Seconds of processor time that fetches of strangers at one address may cost at once, and a second in the long run: with what else an
/// address costs, less than 2 % of a core. A newcomer may cost what it takes to serve it the state, besides.
const FETCHES: (f64, f64) = (0.08, 0.006);
/// What an address may owe of that, in seconds.
const DEBT_MAX: f64 = 0.5;

/// What it costs to send so many bytes.
pub fn sending(bytes: u64) -> Duration {
    MIB_WORK.mul_f64(bytes as f64 / MIB)
}

/// What it costs to serve a state of so many bytes, chunk by chunk.
pub fn serving(bytes: u64) -> Duration {
    let chunks = u32::try_from(bytes.div_ceil(STATE_CHUNK_BYTES as u64)).unwrap_or(u32::MAX);
    sending(bytes).saturating_add((REQUEST_WORK + LOOKUP_WORK).saturating_mul(chunks))
}

/// Announcements of strangers that one peer may pass on. A flock whose nodes all start at once has one of each.
const ANNOUNCEMENTS: (f64, f64) = (64.0, 4.0);
/// What of a stranger may wait to be heard: what it says in a quarter of a second. Older words are about rounds that are over.
const BACKLOG_MESSAGES: usize = 4;
const BACKLOG_BYTES: usize = 64 * 1024;

/// Messages that a stranger has sent before their time, the newest of them.
#[derive(Debug, Default)]
pub struct Backlog {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Backlog {
    /// How many older ones make way for it.
    pub fn push(&mut self, message: Vec<u8>) -> u64 {
        self.bytes += message.len();
        self.messages.push_back(message);
        let mut dropped = 0;
        while self.messages.len() > BACKLOG_MESSAGES || self.bytes > BACKLOG_BYTES {
            dropped += u64::from(self.pop().is_some());
        }
        dropped
    }

    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }
}

/// A token bucket.
#[derive(Debug)]
pub struct Bucket {
    tokens: f64,
    burst: f64,
    per_second: f64,
    at: Instant,
}

impl Bucket {
    fn new((burst, per_second): (f64, f64), now: Instant) -> Self {
        Self { tokens: burst, burst, per_second, at: now }
    }

    /// What a peer may send of which nothing is looked at.
    pub fn of_stranger(now: Instant) -> Self {
        Self::new(STRANGER, now)
    }

    /// Seconds of processor time that fetches of strangers at one address may cost, if a newcomer needs so much at once.
    pub fn of_fetcher(newcomer: Duration, now: Instant) -> Self {
        let (burst, per_second) = FETCHES;
        Self::new((burst + newcomer.as_secs_f64(), per_second), now)
    }

    /// A newcomer needs so much at once by now: what is more than before is there at once.
    pub fn widen(&mut self, newcomer: Duration) {
        let burst = FETCHES.0 + newcomer.as_secs_f64();
        self.tokens += (burst - self.burst).max(0.0);
        self.burst = self.burst.max(burst);
    }

    /// The same as [`Bucket::take`], of processor time that has been spent, or will be in any case. What an address owes is bounded, so
    /// that it is served again some time after it has come to its senses.
    pub fn spend(&mut self, work: Duration, now: Instant) -> Option<Duration> {
        let wait = self.take(work.as_secs_f64(), now);
        self.tokens = self.tokens.max(-DEBT_MAX);
        wait
    }

    /// Announcements of strangers that a peer may pass on.
    pub fn of_teller(now: Instant) -> Self {
        Self::new(ANNOUNCEMENTS, now)
    }

    /// Tokens that there are to take.
    pub fn left(&self, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        (self.tokens + earned).min(self.burst)
    }

    /// Takes one if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let may = self.left(now) >= 1.0;
        if may {
            let _ = self.take(1.0, now);
        }
        may
    }

    /// Takes tokens; how long to wait for them, if at all. A debt is at most what was taken, since who has one waits.
    pub fn take(&mut self, tokens: f64, now: Instant) -> Option<Duration> {
        self.tokens = self.left(now) - tokens;
        self.at = now;
        (self.tokens < 0.0).then(|| Duration::from_secs_f64(-self.tokens / self.per_second))
    }
}

/// Messages and bytes together.
#[derive(Debug)]
pub struct Account {
    messages: Bucket,
    bytes: Bucket,
}

impl Account {
    fn of_stranger(now: Instant) -> Self {
        Self { messages: Bucket::new(STRANGER, now), bytes: Bucket::new(STRANGER_BYTES, now) }
    }

    pub fn of_address(now: Instant) -> Self {
        Self { messages: Bucket::new(ADDRESS, now), bytes: Bucket::new(ADDRESS_BYTES, now) }
    }

    /// How long to wait, if at all.
    pub fn spend(&mut self, cost: Cost, now: Instant) -> Option<Duration> {
        let messages = self.messages.take(f64::from(cost.messages), now);
        messages.max(self.bytes.take(cost.bytes as f64, now))
    }
}

/// What a session has to spend: a stranger's account while it is one, and that of a member.
#[derive(Debug)]
pub struct Purse {
    stranger: Account,
    member: Bucket,
}

impl Purse {
    pub fn new(now: Instant) -> Self {
        Self { stranger: Account::of_stranger(now), member: Bucket::new(MEMBER, now) }
    }

    /// A message has arrived: how much sooner than even a member's may.
    pub fn read(&mut self, now: Instant) -> Option<Duration> {
        self.member.take(1.0, now)
    }

    /// How long a stranger's message has to wait, if at all.
    pub fn hear_stranger(&mut self, cost: Cost, now: Instant) -> Option<Duration> {
        self.stranger.spend(cost, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Messages of so many bytes of a stranger's that are heard in 30 s, if it always has one more.
    fn heard(bytes: usize) -> u32 {
        let start = Instant::now();
        let (mut purse, mut now, mut count) = (Purse::new(start), start, 0);
        while now < start + SECOND * 30 {
            now += purse.hear_stranger(Cost { messages: 1, bytes }, now).unwrap_or_default();
            count += 1;
        }
        count
    }

    #[test]
    fn a_stranger_has_a_burst_and_then_a_few_a_second() {
        assert!((540..=550).contains(&heard(300)), "{}", heard(300));
        assert!((33..=36).contains(&heard(16 * 1024)), "{} of 16 KiB", heard(16 * 1024));
    }

    #[test]
    fn what_an_honest_newcomer_says_never_waits() {
        let start = Instant::now();
        let mut purse = Purse::new(start);
        let mut say = |messages, bytes, at| purse.hear_stranger(Cost { messages, bytes }, start + at);
        assert_eq!(say(1, 4 * 1024 + 400, Duration::ZERO), None, "a Hello");
        for second in 0..1000 {
            let at = SECOND * second;
            assert_eq!(say(1, 500, at), None, "a Head");
            assert_eq!(say(1, 700, at), None, "a Join with its ticket");
            assert_eq!(say(2, 900, at), None, "what else there is");
        }
    }

    #[test]
    fn of_what_came_too_soon_the_newest_is_kept() {
        let mut backlog = Backlog::default();
        let dropped: u64 = (0..100).map(|n| backlog.push(vec![n])).sum();
        assert_eq!(dropped, 100 - BACKLOG_MESSAGES as u64);
        assert_eq!(backlog.pop(), Some(vec![100 - BACKLOG_MESSAGES as u8]));
        for _ in 0..10 {
            backlog.push(vec![0; 16 * 1024]);
        }
        assert!(backlog.bytes <= BACKLOG_BYTES);
    }
}
