//! An emulated wide-area network: machines with addresses of their own, and a switch between them that delays, loses,
//! limits and translates their packets.

pub mod link;
mod machine;
pub mod nat;
mod packet;
pub mod rights;
mod switch;

pub use link::{Link, LinkChange};
pub use machine::Machine;
pub use switch::{Command, Counts, MTU, Port};

use anyhow::Context;
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use switch::Switch;

/// Commands that may wait for the switch.
const COMMANDS: usize = 4096;

/// A running network; it ends when dropped.
pub struct Network {
    pub machines: Vec<Machine>,
    pub counts: Vec<Arc<Counts>>,
    wires: Wires,
    switch: Option<JoinHandle<()>>,
}

/// Changes the network while it runs; can be cloned and sent.
#[derive(Clone)]
pub struct Wires {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
}

impl Wires {
    /// Sends a command; the switch obeys it before the next packet.
    ///
    /// # Errors
    /// If the network has ended.
    pub fn tell(&self, command: Command) -> anyhow::Result<()> {
        self.commands.send(command).map_err(|_| anyhow::anyhow!("the network has ended"))?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).context("cannot wake the switch")?;
        Ok(())
    }
}

impl Network {
    /// Makes machines at these places; `links` by sender, then receiver. Needs [`rights::acquire`] before.
    ///
    /// # Errors
    /// If the system refuses a namespace, a device or a thread.
    pub fn start(ports: &[Port], links: Vec<Link>, seed: u64) -> anyhow::Result<Self> {
        anyhow::ensure!(links.len() == ports.len() * ports.len(), "a link for each pair");
        let (mut machines, mut seats, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for port in ports {
            let own = port.nat.map_or(port.address, |(_, inner)| inner);
            let (machine, device) = Machine::make(own)?;
            let counted = Arc::new(Counts::default());
            machines.push(machine);
            counts.push(counted.clone());
            seats.push((port.clone(), device, counted));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).context("cannot make an eventfd")?;
        let woken = wake.try_clone().context("cannot clone an eventfd")?;
        let (commands, received) = sync_channel(COMMANDS);
        let switch = Switch::new(seats, links, seed, woken, received);
        let switch = std::thread::Builder::new().name("switch".into()).spawn(move || switch.run())?;
        Ok(Self { machines, counts, wires: Wires { commands, wake: Arc::new(wake) }, switch: Some(switch) })
    }

    /// The handle that changes the network.
    pub fn wires(&self) -> &Wires {
        &self.wires
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.wires.tell(Command::Stop);
        if let Some(switch) = self.switch.take() {
            let _ = switch.join();
        }
    }
}
