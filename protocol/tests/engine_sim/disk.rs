//! A node's disk: what is on it survives, what is on its way may or may not.

use starling_protocol::Digest;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::record::Record;
use std::rc::Rc;

/// A record and its digest.
#[derive(Clone, Debug)]
pub struct Link {
    pub record: Rc<Record>,
    pub digest: Digest,
}

impl Link {
    pub fn new(record: Record) -> Self {
        Self { digest: record.digest(), record: Rc::new(record) }
    }
}

#[derive(Clone, Debug)]
pub struct Reported {
    pub key: AttemptKey,
    pub record: Record,
    pub update: Digest,
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The chain up to the head.
    pub chain: Vec<Link>,
    pub report: Option<Reported>,
}

#[derive(Clone, Debug)]
pub enum Write {
    Found(Link),
    Report(Box<Reported>),
    Commit(Link),
}

impl Disk {
    pub fn apply(&mut self, write: Write) {
        match write {
            Write::Found(link) => self.chain = vec![link],
            Write::Report(report) => self.report = Some(*report),
            Write::Commit(link) => {
                self.chain.push(link);
                self.report = None;
            }
        }
    }

    pub fn head(&self) -> Option<&Link> {
        self.chain.last()
    }
}
