//! A peer to be dialed, and the state of that.

use crate::discovery::reason::Reason;
use libp2p::{Multiaddr, PeerId};
use starling_protocol::engine::io::Time;
use std::time::Duration;

/// How much a peer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Worth meeting.
    Candidate,
    /// To be connected at all times.
    Wanted,
    /// Named by the user: to be connected at all times, and never forgotten.
    Anchor,
}

/// A peer that should be connected and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub peer: PeerId,
    pub wish: Wish,
    pub address: Option<Multiaddr>,
    pub reason: Reason,
    /// Rounds that failed since it was last connected.
    pub rounds: u32,
    pub retry_in: Duration,
}

#[derive(Debug)]
pub(super) struct Target {
    pub wish: Wish,
    pub state: State,
    /// Addresses of this round that failed.
    pub tried: Vec<Multiaddr>,
    pub rounds: u32,
    /// Times that a relay did not help since it was last connected.
    pub unpunched: u32,
    /// The last failure; cleared by a connection.
    pub trouble: Option<(Option<Multiaddr>, Reason)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting(Time),
    Dialing,
    Connected,
}

impl Target {
    /// The peer's trouble; `None` if nothing failed, or if it is connected.
    pub fn describe(&self, peer: &PeerId, now: Time) -> Option<Trouble> {
        let (address, reason) = self.trouble.clone()?;
        let retry_in = match self.state {
            State::Connected => return None,
            State::Dialing => Duration::ZERO,
            State::Waiting(at) => Duration::from_micros(at.0.saturating_sub(now.0)),
        };
        Some(Trouble { peer: *peer, wish: self.wish, address, reason, rounds: self.rounds, retry_in })
    }
}
