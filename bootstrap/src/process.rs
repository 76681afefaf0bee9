//! Tells processes that share a key apart.
//!
//! libp2p knows a peer by its key, and takes two processes with one key for one peer with two connections. So a node
//! names its process by a number of its own choice, among the protocols that `identify` lists on each connection:
//!
//! ```text
//! /starling/process/1/0123456789abcdef        16 lower-case hex digits; a stream of this name is never opened
//! ```

use libp2p::StreamProtocol;

const PREFIX: &str = "/starling/process/1/";
const DIGITS: usize = 16;

/// One of the processes with a key; the number is drawn at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(pub u64);

impl Process {
    /// The process of a peer that does not name one.
    pub const UNNAMED: Self = Self(0);

    /// The protocol name under which it is listed.
    pub fn protocol(self) -> StreamProtocol {
        StreamProtocol::try_from_owned(format!("{PREFIX}{:0DIGITS$x}", self.0)).unwrap_or(StreamProtocol::new(PREFIX))
    }

    /// The process of a peer that lists these protocols; the first if there are several.
    pub fn named<'a>(protocols: impl IntoIterator<Item = &'a StreamProtocol>) -> Self {
        let number = |name: &StreamProtocol| {
            let digits = name.as_ref().strip_prefix(PREFIX).filter(|digits| digits.len() == DIGITS)?;
            u64::from_str_radix(digits, 16).ok()
        };
        protocols.into_iter().find_map(number).map_or(Self::UNNAMED, Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let other = StreamProtocol::new("/starling/ctl/9");
        for number in [1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let name = Process(number).protocol();
            assert_eq!(name.as_ref().len(), PREFIX.len() + DIGITS);
            assert_eq!(Process::named([&other, &name]), Process(number));
        }
        assert_eq!(Process::named([&other]), Process::UNNAMED);
        for bad in ["/starling/process/1/", "/starling/process/1/12", "/starling/process/1/zzzzzzzzzzzzzzzz"] {
            assert_eq!(Process::named([&StreamProtocol::new(bad)]), Process::UNNAMED, "{bad}");
        }
    }
}
