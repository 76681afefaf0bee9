//! The ports of a node that leaves their choice to the system: it keeps those of its first start, so that a ticket that
//! names them still leads to it after a restart.

use super::kept;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

/// Name of the file in the node's folder: `"ADDRESS" = PORT`, one a line.
const FILE: &str = "ports.toml";

/// See the module's documentation.
pub struct Ports {
    path: PathBuf,
    /// The addresses that the user named.
    asked: Vec<Multiaddr>,
    /// Ports of earlier starts by the text of the address, whose own port is 0.
    kept: BTreeMap<String, u16>,
    /// Places of the addresses whose port in this process is known.
    told: BTreeSet<usize>,
}

impl Ports {
    /// The ports that the node with this folder has had.
    pub fn of(home: &Path, asked: Vec<Multiaddr>) -> Self {
        let path = home.join(FILE);
        let kept = match path.exists() {
            true => starling_bootstrap::config_file::load(&path).unwrap_or_else(|error| {
                tracing::warn!("the ports of this node's earlier starts are lost, and it takes others: {error}");
                BTreeMap::new()
            }),
            false => BTreeMap::new(),
        };
        Self { path, asked, kept, told: BTreeSet::new() }
    }

    /// The addresses to listen on: with the port of the last start where the user named none and it is free.
    pub fn listen(&self) -> Vec<Multiaddr> {
        let mut taken = BTreeSet::new();
        let choose = |asked: &Multiaddr| {
            let kept = self.kept.get(&asked.to_string()).filter(|_| is_open(asked));
            let Some(port) = kept.filter(|port| taken.insert((kind(asked), **port))) else { return asked.clone() };
            let address = with_port(asked, *port);
            if is_free(&address) {
                return address;
            }
            tracing::warn!(
                "port {port} of {asked}, which this node had before, is taken by another process: the node takes \
                 another port, and tickets that name the old one no longer lead to it"
            );
            asked.clone()
        };
        self.asked.iter().map(choose).collect()
    }

    /// The node listens at this address: keeps its port, if the system chose it.
    pub fn note(&mut self, address: &Multiaddr) {
        if is_relayed(address) {
            // The port is the relay's.
            return;
        }
        let Some(port) = port_of(address) else { return };
        if self.asked.iter().any(|asked| port_of(asked) == Some(port) && kind(asked) == kind(address)) {
            // The user named this one.
            return;
        }
        let fits = |at: &usize| {
            let asked = &self.asked[*at];
            is_open(asked) && kind(asked) == kind(address) && holds(asked, address) && !self.told.contains(at)
        };
        let Some(at) = (0..self.asked.len()).find(fits) else { return };
        self.told.insert(at);
        if self.kept.insert(self.asked[at].to_string(), port) == Some(port) {
            return;
        }
        let text = toml::to_string(&self.kept).map_err(std::io::Error::other);
        if let Err(error) = text.and_then(|text| kept::write(&self.path, text.as_bytes())) {
            let why = starling_words::of(&error);
            tracing::warn!("this node's ports cannot be kept in {}: {why}", self.path.display());
        }
    }
}

/// Whether the system chooses the port.
fn is_open(address: &Multiaddr) -> bool {
    port_of(address) == Some(0)
}

fn port_of(address: &Multiaddr) -> Option<u16> {
    address.iter().find_map(|part| match part {
        Protocol::Tcp(port) | Protocol::Udp(port) => Some(port),
        _ => None,
    })
}

/// Whether the host is one of the first address's, and whether it is reached by UDP.
fn kind(address: &Multiaddr) -> (bool, bool) {
    let v6 = address.iter().any(|part| matches!(part, Protocol::Ip6(_)));
    (v6, address.iter().any(|part| matches!(part, Protocol::Udp(_))))
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// Whether a listener at `asked` has that address: of the same host, or of any.
fn holds(asked: &Multiaddr, address: &Multiaddr) -> bool {
    ip_of(asked).is_some_and(|ip| ip.is_unspecified() || Some(ip) == ip_of(address))
}

/// The address with a port that the system chooses; none for an address at a relay, whose port is the relay's.
pub fn any_port(address: &Multiaddr) -> Option<Multiaddr> {
    (!is_relayed(address)).then(|| with_port(address, 0))
}

fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::P2pCircuit))
}

fn with_port(address: &Multiaddr, port: u16) -> Multiaddr {
    let placed = address.iter().map(|part| match part {
        Protocol::Tcp(_) => Protocol::Tcp(port),
        Protocol::Udp(_) => Protocol::Udp(port),
        other => other,
    });
    placed.collect()
}

/// Whether this process may listen there.
fn is_free(address: &Multiaddr) -> bool {
    let (Some(ip), Some(port)) = (ip_of(address), port_of(address)) else { return true };
    let (_, udp) = kind(address);
    if udp { UdpSocket::bind((ip, port)).is_ok() } else { TcpListener::bind((ip, port)).is_ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: &str = "/ip4/192.0.2.7/tcp/7401/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";

    fn parse(list: &[&str]) -> Vec<Multiaddr> {
        list.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn ports_are_kept_from_the_first_start_on() {
        let home = tempfile::tempdir().expect("a folder");
        let asked = || parse(&["/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1", "/ip4/0.0.0.0/tcp/7400"]);
        // Ports that were free a moment ago.
        let (tcp, udp) = {
            let tcp = TcpListener::bind("0.0.0.0:0").expect("a port");
            let udp = UdpSocket::bind("0.0.0.0:0").expect("a port");
            (tcp.local_addr().expect("it has one").port(), udp.local_addr().expect("it has one").port())
        };
        let mut ports = Ports::of(home.path(), asked());
        assert_eq!(ports.listen(), asked(), "the system chooses at first");
        for told in [
            // The port that was named, and a listener that nobody asked for.
            "/ip4/127.0.0.1/tcp/7400".to_owned(),
            "/ip6/::1/tcp/1".to_owned(),
            // A place at a relay.
            format!("{RELAY}/p2p-circuit"),
            format!("/ip4/127.0.0.1/tcp/{tcp}"),
            format!("/ip4/127.0.0.1/udp/{udp}/quic-v1"),
        ] {
            ports.note(&told.parse().expect("an address"));
        }
        let again = Ports::of(home.path(), asked());
        let (at_tcp, at_udp) = (format!("/ip4/0.0.0.0/tcp/{tcp}"), format!("/ip4/0.0.0.0/udp/{udp}/quic-v1"));
        assert_eq!(again.listen(), parse(&[&at_tcp, &at_udp, "/ip4/0.0.0.0/tcp/7400"]));

        // Another process has taken one of them.
        let _thief = TcpListener::bind(("0.0.0.0", tcp)).expect("it is free");
        assert_eq!(again.listen(), parse(&["/ip4/0.0.0.0/tcp/0", &at_udp, "/ip4/0.0.0.0/tcp/7400"]));

        std::fs::write(home.path().join(FILE), "nonsense").expect("written");
        assert_eq!(Ports::of(home.path(), asked()).listen(), asked(), "a damaged file costs the ports only");
    }

    #[test]
    fn a_question_asks_for_no_place_at_a_relay() {
        let relayed = format!("{RELAY}/p2p-circuit");
        let listen = parse(&["/ip4/0.0.0.0/tcp/7400", "/ip4/0.0.0.0/udp/7400/quic-v1", &relayed]);
        let free: Vec<Multiaddr> = listen.iter().filter_map(any_port).collect();
        assert_eq!(free, parse(&["/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1"]));
    }
}
