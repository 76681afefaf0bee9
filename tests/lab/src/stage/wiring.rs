//! The current links: those of the topology, with the changes of faults.

use crate::network::{Command, Link, LinkChange, Network};
use crate::scenario::Topology;
use anyhow::Result;

/// The changes that hold now, in the order of their beginning.
pub struct Wiring {
    base: Vec<Link>,
    machines: usize,
    changes: Vec<Change>,
}

struct Change {
    /// The owner, which can take the change back.
    owner: Owner,
    pairs: Vec<(usize, usize)>,
    change: LinkChange,
}

/// The owner of a change of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A fault, by its number.
    Fault(usize),
    /// One of a fault's pairs.
    Pair(usize, usize),
    /// A machine without power.
    Silence(usize),
}

impl Wiring {
    pub fn new(topology: &Topology) -> Self {
        Self { base: topology.links.clone(), machines: topology.seats.len(), changes: Vec::new() }
    }

    /// Adds a change of these pairs.
    ///
    /// # Errors
    /// If the network has ended.
    pub fn lay(
        &mut self,
        network: &Network,
        owner: Owner,
        pairs: Vec<(usize, usize)>,
        change: LinkChange,
    ) -> Result<()> {
        self.changes.push(Change { owner, pairs: pairs.clone(), change });
        self.tell(network, &pairs)
    }

    /// Takes the owner's changes back.
    ///
    /// # Errors
    /// If the network has ended.
    pub fn lift(&mut self, network: &Network, owner: Owner) -> Result<()> {
        let mut pairs = Vec::new();
        self.changes.retain(|c| {
            if c.owner == owner {
                pairs.extend(c.pairs.iter().copied());
            }
            c.owner != owner
        });
        self.tell(network, &pairs)
    }

    /// Stops all packets to and from the machine.
    ///
    /// # Errors
    /// If the network has ended.
    pub fn silence(&mut self, network: &Network, machine: usize) -> Result<()> {
        let others = (0..self.machines).filter(|other| *other != machine);
        let pairs = others.flat_map(|other| [(machine, other), (other, machine)]).collect();
        self.lay(network, Owner::Silence(machine), pairs, LinkChange { cut: Some(true), ..LinkChange::default() })
    }

    /// The link with the current changes.
    pub fn link(&self, from: usize, to: usize) -> Link {
        let own = self.changes.iter().filter(|c| c.pairs.contains(&(from, to)));
        own.fold(self.base[from * self.machines + to], |link, c| c.change.on(link))
    }

    fn tell(&self, network: &Network, pairs: &[(usize, usize)]) -> Result<()> {
        for (from, to) in pairs {
            network.wires().tell(Command::Link { from: *from, to: *to, link: self.link(*from, *to) })?;
        }
        Ok(())
    }
}
