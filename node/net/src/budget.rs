//! Limits on a peer's messages and bytes: a burst, and a rate in the long run. Messages that a member sends above its
//! limit are read later. Of a stranger's messages the newest is heard, since it supersedes the older ones (its head,
//! its wish to join). A stranger that sends more than even a member may is sent away.

use starling_protocol::limits::STATE_CHUNK_BYTES;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The cost of a message.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub messages: u32,
    pub bytes: usize,
}

/// A new session of a stranger costs its address as much as so many messages: both sides greet, and the node takes the
/// peer in.
pub const SESSION: Cost = Cost { messages: 8, bytes: 4096 };

/// Messages that a member may send at once, and a second in the long run.
const MEMBER: (f64, f64) = (1024.0, 256.0);
/// Words of others that a neighbour in a large flock may pass on: a round's READYs of a row or column twice over, and
/// the Heads of its members. Each costs a check of a signature.
const PASSED_ON: (f64, f64) = (256.0, 64.0);
/// The same for a stranger. The limit has room for its Hello and for five Heads and Joins a second, as many as a
/// non-member sends.
const STRANGER: (f64, f64) = (64.0, 16.0);
const STRANGER_BYTES: (f64, f64) = (64.0 * 1024.0, 16.0 * 1024.0);
/// The same for all strangers at one address. A message costs some 0.1 ms in all, most of it the check of its
/// signature.
const ADDRESS: (f64, f64) = (512.0, 64.0);
const ADDRESS_BYTES: (f64, f64) = (512.0 * 1024.0, 128.0 * 1024.0);
/// The processor time that fetches cost the node that serves them: a new stream, a request without its lookup, which is
/// measured, and a mebibyte that is sent. `bench-fetch` measured these on a busy machine; on an idle one they are a
/// third less.
pub const STREAM_WORK: Duration = Duration::from_micros(170);
pub const REQUEST_WORK: Duration = Duration::from_micros(120);
const MIB_WORK: Duration = Duration::from_micros(3000);
/// Looking up a chunk of the state, which is read and checked: the time is measured, and this is the most that it ought
/// to be.
const LOOKUP_WORK: Duration = Duration::from_micros(1000);
const MIB: f64 = 1024.0 * 1024.0;
/// Seconds of processor time that fetches of strangers at one address may cost: a burst, and a second in the long run.
/// Together with the address's other costs this is less than 2 % of a core. Serving the state to a newcomer may cost so
/// much more.
const FETCHES: (f64, f64) = (0.08, 0.006);
/// The largest debt of an address in this time, in seconds.
const DEBT_MAX: f64 = 0.5;

/// The cost of sending so many bytes.
pub fn sending(bytes: u64) -> Duration {
    MIB_WORK.mul_f64(bytes as f64 / MIB)
}

/// The cost of serving a state of so many bytes, chunk by chunk.
pub fn serving(bytes: u64) -> Duration {
    let chunks = u32::try_from(bytes.div_ceil(STATE_CHUNK_BYTES as u64)).unwrap_or(u32::MAX);
    sending(bytes).saturating_add((REQUEST_WORK + LOOKUP_WORK).saturating_mul(chunks))
}

/// Announcements of strangers that one peer may pass on. When all nodes of a flock start at once, a peer passes on one
/// of each.
const ANNOUNCEMENTS: (f64, f64) = (64.0, 4.0);
/// A stranger's messages that may wait to be heard: those of a quarter of a second. Older messages are about rounds
/// that are over.
const BACKLOG_MESSAGES: usize = 4;
const BACKLOG_BYTES: usize = 64 * 1024;

/// Messages that a stranger has sent before their time; only the newest are kept.
#[derive(Debug, Default)]
pub struct Backlog {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Backlog {
    /// Adds a message, and returns how many older ones make way for it.
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

    /// The limit of a peer whose messages are not looked at.
    pub fn of_stranger(now: Instant) -> Self {
        Self::new(STRANGER, now)
    }

    /// Seconds of processor time that fetches of strangers at one address may cost, where a newcomer needs `newcomer`
    /// at once.
    pub fn of_fetcher(newcomer: Duration, now: Instant) -> Self {
        let (burst, per_second) = FETCHES;
        Self::new((burst + newcomer.as_secs_f64(), per_second), now)
    }

    /// Raises the burst to what a newcomer needs by now. The increase can be spent at once.
    pub fn widen(&mut self, newcomer: Duration) {
        let burst = FETCHES.0 + newcomer.as_secs_f64();
        self.tokens += (burst - self.burst).max(0.0);
        self.burst = self.burst.max(burst);
    }

    /// The same as [`Bucket::take`], for processor time that is spent in any case. The debt of an address is bounded,
    /// so that it is served again some time after it has stopped its flood.
    pub fn spend(&mut self, work: Duration, now: Instant) -> Option<Duration> {
        let wait = self.take(work.as_secs_f64(), now);
        self.tokens = self.tokens.max(-DEBT_MAX);
        wait
    }

    /// Announcements of strangers that a peer may pass on.
    pub fn of_teller(now: Instant) -> Self {
        Self::new(ANNOUNCEMENTS, now)
    }

    /// Tokens that can be taken.
    pub fn left(&self, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        (self.tokens + earned).min(self.burst)
    }

    /// Takes one token if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let may = self.left(now) >= 1.0;
        if may {
            let _ = self.take(1.0, now);
        }
        may
    }

    /// Takes tokens and returns how long to wait for them, if at all. A debt is at most the last amount taken, since a
    /// peer in debt waits.
    pub fn take(&mut self, tokens: f64, now: Instant) -> Option<Duration> {
        self.tokens = self.left(now) - tokens;
        self.at = now;
        (self.tokens < 0.0).then(|| Duration::from_secs_f64(-self.tokens / self.per_second))
    }
}

/// A budget of messages and one of bytes.
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

    /// Returns how long to wait, if at all.
    pub fn spend(&mut self, cost: Cost, now: Instant) -> Option<Duration> {
        let messages = self.messages.take(f64::from(cost.messages), now);
        messages.max(self.bytes.take(cost.bytes as f64, now))
    }
}

/// The budget of a session: a stranger's account while the peer is one, and a member's.
#[derive(Debug)]
pub struct Purse {
    stranger: Account,
    member: Bucket,
    passed_on: Bucket,
}

impl Purse {
    pub fn new(now: Instant) -> Self {
        Self {
            stranger: Account::of_stranger(now),
            member: Bucket::new(MEMBER, now),
            passed_on: Bucket::new(PASSED_ON, now),
        }
    }

    /// Whether the peer may pass on one more word of others.
    pub fn pass_on(&mut self, now: Instant) -> bool {
        self.passed_on.try_take(now)
    }

    /// A message has arrived. Returns how long before its time, by a member's limit, if at all.
    pub fn read(&mut self, now: Instant) -> Option<Duration> {
        self.member.take(1.0, now)
    }

    /// Returns how long a stranger's message has to wait, if at all.
    pub fn hear_stranger(&mut self, cost: Cost, now: Instant) -> Option<Duration> {
        self.stranger.spend(cost, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The number of a stranger's messages of so many bytes that are heard in 30 s, if it always has one more.
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
    fn words_of_others_have_a_pace_of_their_own() {
        let start = Instant::now();
        let mut purse = Purse::new(start);
        let passed = (0..60_000).filter(|ms| purse.pass_on(start + Duration::from_millis(*ms))).count();
        assert!((256 + 59 * 64..=256 + 60 * 64).contains(&passed), "{passed} in a minute");
        assert_eq!(purse.read(start + SECOND * 60), None, "its own words are not held up");
    }

    #[test]
    fn the_messages_of_an_honest_newcomer_never_wait() {
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
    fn the_newest_of_the_early_messages_are_kept() {
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
