//! A node's disk: what is on it survives, what is on its way may or may not.

use starling_protocol::Digest;
use starling_protocol::engine::{Candidate, Register};
use starling_protocol::message::Certificate;
use starling_protocol::record::Record;
use std::rc::Rc;

/// A record, its digest, and what decided it.
#[derive(Clone, Debug)]
pub struct Link {
    pub record: Rc<Record>,
    pub digest: Digest,
    pub certificate: Option<Rc<Certificate>>,
}

impl Link {
    pub fn new(record: Record, certificate: Option<Certificate>) -> Self {
        Self { digest: record.digest(), record: Rc::new(record), certificate: certificate.map(Rc::new) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The chain up to the head.
    pub chain: Vec<Link>,
    pub register: Option<Register>,
    pub candidates: Vec<Candidate>,
}

#[derive(Clone, Debug)]
pub enum Write {
    Found(Link),
    Said(Box<(Register, Option<Candidate>)>),
    Commit(Link),
}

impl Disk {
    pub fn apply(&mut self, write: Write) {
        match write {
            Write::Found(link) => self.chain = vec![link],
            Write::Said(said) => {
                let (register, candidate) = *said;
                self.register = Some(register);
                self.candidates.extend(candidate);
            }
            Write::Commit(link) => {
                self.chain.push(link);
                self.candidates.clear();
            }
        }
    }

    pub fn head(&self) -> Option<&Link> {
        self.chain.last()
    }
}
