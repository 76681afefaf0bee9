//! What a node tells the run's gossip topic: where it can be reached.
//!
//! ```text
//! magic u16 = 0x4153 ("SA") | version u8 = 1 | count u8 | sent at u64 (milliseconds)
//! count x (length u16 | multiaddr, without /p2p)                                       little-endian
//! ```
//!
//! Gossipsub signs each message and checks the signature, so the announcement is about its author and names nobody.
//! The time makes an author's announcements ordered: an old one that somebody repeats is ignored.

use libp2p::{Multiaddr, PeerId};
use starling_bootstrap::addresses;
use std::collections::BTreeMap;

/// Addresses in one announcement.
pub const ADDRESSES_MAX: usize = 16;
/// Bytes of the longest announcement.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 12 + ADDRESSES_MAX * (2 + addresses::ADDRESS_BYTES_MAX);
/// Authors whose newest announcement is remembered.
const AUTHORS_CAP: usize = 1024;

const MAGIC: u16 = 0x4153;
const VERSION: u8 = 1;

/// Why an announcement is not passed on.
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

/// Where a node can be reached, and when it said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    pub at_ms: u64,
    pub addresses: Vec<Multiaddr>,
}

impl Announcement {
    /// The bytes; addresses beyond [`ADDRESSES_MAX`], and ones that are too long, are left out.
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

    /// From the bytes of a gossip message.
    ///
    /// # Errors
    /// [`AnnouncementError`] unless every byte is as it must be.
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

/// Tells new announcements from repeated ones.
#[derive(Default)]
pub(super) struct Newest(BTreeMap<PeerId, u64>);

impl Newest {
    /// Whether this is newer than anything from its author; if so it is remembered. When too many authors are known,
    /// the one that spoke longest ago is forgotten.
    pub fn is_news(&mut self, author: PeerId, at_ms: u64) -> bool {
        if self.0.get(&author).is_some_and(|newest| *newest >= at_ms) {
            return false;
        }
        if self.0.len() >= AUTHORS_CAP
            && !self.0.contains_key(&author)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, at)| **at).map(|(peer, _)| *peer)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(author, at_ms);
        true
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

    #[test]
    fn repeated_announcements_are_no_news_and_memory_is_bounded() {
        let mut newest = Newest::default();
        let author = PeerId::random();
        assert!(newest.is_news(author, 5));
        assert!(!newest.is_news(author, 5));
        assert!(!newest.is_news(author, 4));
        for at in 0..2 * AUTHORS_CAP as u64 {
            assert!(newest.is_news(PeerId::random(), 100 + at));
        }
        assert!(newest.0.len() <= AUTHORS_CAP);
    }

    proptest! {
        #[test]
        fn what_decodes_is_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..80), real in any::<bool>()) {
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
