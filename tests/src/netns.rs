//! Machines of one network on one machine: a network namespace each, joined by bridges. Machines can be moved between
//! the bridges, so that a network can be cut and healed without the programs' knowledge.

use anyhow::{Context, bail};
use std::process::Command;

/// Some namespaces and bridges, removed when dropped.
pub struct Network {
    prefix: String,
    machines: usize,
    bridges: usize,
}

impl Network {
    /// The reason why this system cannot have such a network, if it cannot.
    pub fn missing() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("network namespaces need root");
        }
        let there = Command::new("ip").arg("-V").output().is_ok_and(|said| said.status.success());
        if !there { Some("there is no `ip` (package iproute2)") } else { None }
    }

    /// Makes `machines` machines on the first of `bridges` bridges.
    ///
    /// # Errors
    /// If the system refuses a namespace, a bridge or a link; the ones already made are removed.
    pub fn new(machines: usize, bridges: usize) -> anyhow::Result<Self> {
        // The name of a link has at most 15 bytes, so the prefix is short.
        let network = Self { prefix: format!("sl{:x}", std::process::id() & 0xffff), machines, bridges };
        network.take_down();
        for bridge in 0..bridges {
            let name = network.bridge(bridge);
            ip(&["link", "add", &name, "type", "bridge"])?;
            ip(&["link", "set", &name, "up"])?;
        }
        for machine in 0..machines {
            network.join(machine)?;
        }
        Ok(network)
    }

    fn join(&self, machine: usize) -> anyhow::Result<()> {
        let (space, link, inner) = (self.namespace(machine), self.link(machine), self.interface(machine));
        ip(&["netns", "add", &space])?;
        ip(&["link", "add", &link, "type", "veth", "peer", "name", &inner])?;
        ip(&["link", "set", &inner, "netns", &space])?;
        let address = format!("{}/24", self.address(machine));
        ip(&["-n", &space, "addr", "add", &address, "dev", &inner])?;
        for device in ["lo", &inner] {
            ip(&["-n", &space, "link", "set", device, "up"])?;
        }
        self.plug(machine, 0)?;
        ip(&["link", "set", &link, "up"])
    }

    /// Moves a machine to another bridge: it reaches only the machines there.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn plug(&self, machine: usize, bridge: usize) -> anyhow::Result<()> {
        ip(&["link", "set", &self.link(machine), "master", &self.bridge(bridge)])
    }

    /// Limits the machine's link to `mbit` Mbit/s in either direction, with queues of `queue_ms` at that rate.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn limit(&self, machine: usize, mbit: u32, queue_ms: u32) -> anyhow::Result<()> {
        let rate = format!("{mbit}mbit");
        let latency = format!("{queue_ms}ms");
        // A burst has the bytes of 5 ms at that rate.
        let burst = (mbit * 125 * 5).max(16_000).to_string();
        let shape = ["root", "tbf", "rate", &rate, "burst", &burst, "latency", &latency];
        let (space, inner, outer) = (self.namespace(machine), self.interface(machine), self.link(machine));
        let inside = ["-n", &space, "qdisc", "replace", "dev", &inner];
        let outside = ["qdisc", "replace", "dev", &outer];
        run("tc", &[&inside[..], &shape].concat())?;
        run("tc", &[&outside[..], &shape].concat())
    }

    /// The machine's end of its link.
    pub fn interface(&self, machine: usize) -> String {
        format!("{}i{machine}", self.prefix)
    }

    /// The machine's IPv4 address.
    pub fn address(&self, machine: usize) -> String {
        format!("10.77.0.{}", machine + 1)
    }

    /// The program and first arguments that start another program on the machine.
    pub fn on(&self, machine: usize) -> [String; 4] {
        ["ip".into(), "netns".into(), "exec".into(), self.namespace(machine)]
    }

    fn namespace(&self, machine: usize) -> String {
        format!("{}n{machine}", self.prefix)
    }

    fn link(&self, machine: usize) -> String {
        format!("{}l{machine}", self.prefix)
    }

    fn bridge(&self, bridge: usize) -> String {
        format!("{}b{bridge}", self.prefix)
    }

    /// Removes namespaces and bridges; missing ones are no error.
    fn take_down(&self) {
        for machine in 0..self.machines {
            // The links end with their namespaces.
            let _ = ip(&["netns", "del", &self.namespace(machine)]);
            let _ = ip(&["link", "del", &self.link(machine)]);
        }
        for bridge in 0..self.bridges {
            let _ = ip(&["link", "del", &self.bridge(bridge)]);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.take_down();
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let said = Command::new(program).args(arguments).output().with_context(|| format!("cannot run `{program}`"))?;
    if !said.status.success() {
        bail!("`{program} {}` failed: {}", arguments.join(" "), String::from_utf8_lossy(&said.stderr).trim());
    }
    Ok(())
}
