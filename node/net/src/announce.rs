//! The announcement of a node to the run's gossip topic: the addresses at which it can be reached.
//!
//! ```text
//! magic u16 = 0x4153 ("SA") | version u8 = 1 | count u8 | sent at u64 (milliseconds)
//! count x (length u16 | multiaddr, without /p2p)                                       little-endian
//! ```
//!
//! Gossipsub signs each message and checks the signature, so the announcement is about its author and names nobody.
//! The time orders an author's announcements: an old one that a peer repeats is ignored.

use super::budget::Bucket;
use libp2p::{Multiaddr, PeerId};
use starling_bootstrap::addresses;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Addresses in one announcement.
pub const ADDRESSES_MAX: usize = 16;
/// Bytes of the longest announcement.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 12 + ADDRESSES_MAX * (2 + addresses::ADDRESS_BYTES_MAX);
/// Authors whose newest announcement is remembered.
const AUTHORS_CAP: usize = 1024;
/// A peer that this node meets so soon after its announcement was met because of that.
const TOLD: Duration = Duration::from_secs(30);
/// Tellers whose announcements of strangers are counted.
const TELLERS_CAP: usize = 512;
/// The shortest pause between two announcements of an author: half of the pause that nodes keep, since two
/// announcements travel different paths.
const AUTHOR_PAUSE: Duration = Duration::from_secs(1);

const MAGIC: u16 = 0x4153;
const VERSION: u8 = 1;

/// The reason why an announcement is not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnnouncementError {
    #[error("{0} bytes; the limit is {ANNOUNCEMENT_BYTES_MAX}")]
    TooLong(usize),
    #[error("not an announcement")]
    Malformed,
    #[error("announcement version {0}; this node speaks {VERSION}")]
    Version(u8),
    #[error("{0} addresses; the limit is {ADDRESSES_MAX}")]
    TooMany(u8),
    #[error("address {index}: {source}")]
    Address { index: usize, source: addresses::AddressError },
}

/// The addresses of a node, and the time at which it announced them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    pub at_ms: u64,
    pub addresses: Vec<Multiaddr>,
}

impl Announcement {
    /// Encodes the announcement without addresses beyond [`ADDRESSES_MAX`], and without those that are too long.
    pub fn encode(&self) -> Vec<u8> {
        let bare = self.addresses.iter().map(addresses::without_peer);
        let kept: Vec<_> = bare.filter(|a| a.len() <= addresses::ADDRESS_BYTES_MAX).take(ADDRESSES_MAX).collect();
        let mut out = Vec::with_capacity(ANNOUNCEMENT_BYTES_MAX);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&[VERSION, kept.len() as u8]);
        out.extend_from_slice(&self.at_ms.to_le_bytes());
        for address in kept {
            out.extend_from_slice(&(address.len() as u16).to_le_bytes());
            out.extend_from_slice(address.as_ref());
        }
        out
    }

    /// Decodes the bytes of a gossip message.
    ///
    /// # Errors
    /// [`AnnouncementError`] if a byte is not as it must be.
    pub fn decode(bytes: &[u8]) -> Result<Self, AnnouncementError> {
        if bytes.len() > ANNOUNCEMENT_BYTES_MAX {
            return Err(AnnouncementError::TooLong(bytes.len()));
        }
        let (head, mut rest) = bytes.split_first_chunk::<12>().ok_or(AnnouncementError::Malformed)?;
        let [m0, m1, version, count, at @ ..] = *head;
        if u16::from_le_bytes([m0, m1]) != MAGIC {
            return Err(AnnouncementError::Malformed);
        }
        if version != VERSION {
            return Err(AnnouncementError::Version(version));
        }
        if usize::from(count) > ADDRESSES_MAX {
            return Err(AnnouncementError::TooMany(count));
        }
        let mut found = Vec::with_capacity(usize::from(count));
        for index in 0..usize::from(count) {
            let (len, after) = rest.split_first_chunk::<2>().ok_or(AnnouncementError::Malformed)?;
            let len = usize::from(u16::from_le_bytes(*len));
            let (address, after) = after.split_at_checked(len).ok_or(AnnouncementError::Malformed)?;
            let address = addresses::decode(address).map_err(|source| AnnouncementError::Address { index, source })?;
            if addresses::without_peer(&address) != address {
                return Err(AnnouncementError::Malformed);
            }
            found.push(address);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(AnnouncementError::Malformed);
        }
        Ok(Self { at_ms: u64::from_le_bytes(at), addresses: found })
    }
}

/// Tells new announcements from repeated ones, and refuses those above the limits.
#[derive(Default)]
pub(super) struct Newest {
    authors: BTreeMap<PeerId, Heard>,
    tellers: BTreeMap<PeerId, Bucket>,
}

/// The newest announcement of an author.
struct Heard {
    at_ms: u64,
    /// When it came, by this node's clock: the author's own time may be anything.
    came: Instant,
}

impl Newest {
    /// Returns whether the announcement is newer than anything from its author, and remembers it if so. `teller` passed
    /// it on. `is_familiar` says that this node knows the author other than by hearsay. When too many authors are
    /// known, the author heard longest ago is forgotten.
    ///
    /// # Errors
    /// The label of `starling_refused_total`, when the announcement exceeds the limit of its author, or the teller's
    /// limit for strangers.
    pub fn is_news(
        &mut self,
        (teller, author): (PeerId, PeerId),
        is_familiar: bool,
        at_ms: u64,
        now: Instant,
    ) -> Result<bool, &'static str> {
        if let Some(newest) = self.authors.get(&author) {
            if newest.at_ms >= at_ms {
                return Ok(false);
            }
            if now < newest.came + AUTHOR_PAUSE {
                return Err("announcement_too_soon");
            }
        }
        if !is_familiar && !self.may_tell(teller, now) {
            return Err("announcement_of_strangers");
        }
        if self.authors.len() >= AUTHORS_CAP
            && !self.authors.contains_key(&author)
            && let Some(oldest) = self.authors.iter().min_by_key(|(_, heard)| heard.came).map(|(peer, _)| *peer)
        {
            self.authors.remove(&oldest);
        }
        self.authors.insert(author, Heard { at_ms, came: now });
        Ok(true)
    }

    /// Whether an announcement of this author was heard lately.
    pub fn has_told_of(&self, author: &PeerId, now: Instant) -> bool {
        self.authors.get(author).is_some_and(|heard| now.saturating_duration_since(heard.came) < TOLD)
    }

    /// Whether the teller may tell of one more stranger.
    fn may_tell(&mut self, teller: PeerId, now: Instant) -> bool {
        // The teller with the most tokens left is as good as new, so it makes room.
        let idle = || self.tellers.iter().max_by(|(_, a), (_, b)| a.left(now).total_cmp(&b.left(now)));
        if self.tellers.len() >= TELLERS_CAP
            && !self.tellers.contains_key(&teller)
            && let Some(idle) = idle().map(|(peer, _)| *peer)
        {
            self.tellers.remove(&idle);
        }
        self.tellers.entry(teller).or_insert_with(|| Bucket::of_teller(now)).try_take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Announcement {
        let addresses = ["/ip4/127.0.0.1/tcp/4001", "/ip4/10.0.0.7/udp/9/quic-v1"].map(|a| a.parse().unwrap());
        Announcement { at_ms: 0x0102, addresses: addresses.to_vec() }
    }

    #[test]
    fn golden_bytes() {
        let bytes = sample().encode();
        let hex = "534101020201000000000000\
                   0800047f000001060fa1\
                   0b00040a0000079102\
                   0009cd03";
        assert_eq!(data_encoding::HEXLOWER.encode(&bytes), hex);
        assert_eq!(Announcement::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn a_trailing_peer_is_left_out_and_surplus_addresses_too() {
        let with_peer: Multiaddr = addresses::with_peer(&sample().addresses[0], &PeerId::random());
        let many = Announcement { at_ms: 1, addresses: vec![with_peer; ADDRESSES_MAX + 3] };
        let back = Announcement::decode(&many.encode()).unwrap();
        assert_eq!(back.addresses, vec![sample().addresses[0].clone(); ADDRESSES_MAX]);
    }

    #[test]
    fn bad_bytes_are_refused() {
        let good = sample().encode();
        for cut in 0..good.len() {
            assert!(Announcement::decode(&good[..cut]).is_err());
        }
        let mut more = good.clone();
        more.push(0);
        assert_eq!(Announcement::decode(&more), Err(AnnouncementError::Malformed));
        let mut many = good.clone();
        many[3] = 17;
        assert_eq!(Announcement::decode(&many), Err(AnnouncementError::TooMany(17)));
        assert_eq!(
            Announcement::decode(&vec![0; ANNOUNCEMENT_BYTES_MAX + 1]),
            Err(AnnouncementError::TooLong(ANNOUNCEMENT_BYTES_MAX + 1))
        );
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn repeated_announcements_are_no_news_and_memory_is_bounded() {
        let (mut newest, mut now) = (Newest::default(), Instant::now());
        let author = PeerId::random();
        let mut hear = |author, at_ms, now| newest.is_news((PeerId::random(), author), true, at_ms, now);
        assert_eq!(hear(author, 5, now), Ok(true));
        assert_eq!(hear(author, 5, now), Ok(false));
        assert_eq!(hear(author, 4, now + SECOND), Ok(false));
        assert_eq!(hear(author, 6, now), Err("announcement_too_soon"));
        assert_eq!(hear(author, 6, now + SECOND), Ok(true), "what came too soon is not remembered");
        assert!(newest.has_told_of(&author, now + TOLD) && !newest.has_told_of(&author, now + SECOND + TOLD));
        let mut hear = |author, at_ms, now| newest.is_news((PeerId::random(), author), true, at_ms, now);
        // Throwaway authors claim the end of time.
        for _ in 0..2 * AUTHORS_CAP {
            now += SECOND;
            assert_eq!(hear(PeerId::random(), u64::MAX, now), Ok(true));
        }
        let first = PeerId::random();
        assert_eq!(hear(first, 7, now + SECOND), Ok(true));
        assert_eq!(hear(PeerId::random(), 8, now + 2 * SECOND), Ok(true));
        assert_eq!(hear(first, 7, now + 3 * SECOND), Ok(false), "it has a place among them");
        assert!(newest.authors.len() <= AUTHORS_CAP);
    }

    #[test]
    fn the_words_of_one_teller_about_strangers_have_a_budget() {
        let (mut newest, start) = (Newest::default(), Instant::now());
        let teller = PeerId::random();
        let heard = |newest: &mut Newest, teller, familiar, at| {
            newest.is_news((teller, PeerId::random()), familiar, 1, start + at).is_ok()
        };
        let mut told = 0;
        for ms in 0..59_900 {
            told += u32::from(heard(&mut newest, teller, false, Duration::from_millis(ms)));
        }
        assert!((100..400).contains(&told), "{told} in a minute");
        let minute = Duration::from_millis(59_900);
        assert!(heard(&mut newest, teller, true, minute), "whom this node knows costs nobody");
        assert!(heard(&mut newest, PeerId::random(), false, minute), "each teller has its own");
        for _ in 0..2 * TELLERS_CAP {
            heard(&mut newest, PeerId::random(), false, minute);
        }
        assert!(newest.tellers.len() <= TELLERS_CAP);
        assert!(!heard(&mut newest, teller, false, minute), "others' telling clears nothing");
    }

    proptest! {
        #[test]
        fn only_canonical_bytes_decode(bytes in proptest::collection::vec(any::<u8>(), 0..80), real in any::<bool>()) {
            let mut bytes = bytes;
            if real && bytes.len() >= 4 {
                bytes[..3].copy_from_slice(&[0x53, 0x41, 1]);
                bytes[3] %= 3;
            }
            if let Ok(announcement) = Announcement::decode(&bytes) {
                prop_assert_eq!(announcement.encode(), bytes);
            }
        }
    }
}
