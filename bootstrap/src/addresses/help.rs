//! Advice for an address that does not parse: the nearest right form.

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use std::net::{IpAddr, SocketAddr};

const EXAMPLE: &str = "/ip4/192.0.2.7/tcp/7400/p2p/12D3KooW...";
/// Names that may stand between slashes, for "did you mean".
const NAMES: [&str; 11] =
    ["ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr", "tcp", "udp", "quic-v1", "p2p", "p2p-circuit"];

/// The use of an address, on which its right form depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Any,
    /// This node is to listen there.
    Listen,
    /// It leads to a node, whose id it must name.
    Peer,
}

/// Advice for a text that is no multiaddr.
pub fn for_text(text: &str, purpose: Purpose) -> String {
    if text.is_empty() {
        return format!("it is empty; an address looks like {EXAMPLE}");
    }
    if let Some(advice) = for_host_and_port(text, purpose) {
        return advice;
    }
    if !text.starts_with('/') {
        return format!("it has to start with a slash, like {EXAMPLE}");
    }
    for_parts(text).unwrap_or_else(|| format!("an address looks like {EXAMPLE}"))
}

/// Advice for `host:port`, with or without a scheme, which people know from other programs.
fn for_host_and_port(text: &str, purpose: Purpose) -> Option<String> {
    if text.starts_with('/') {
        return None;
    }
    let bare = text.split_once("://").map_or(text, |(_, rest)| rest).trim_end_matches('/');
    // An address that the next message would refuse is no help.
    let id = match purpose {
        Purpose::Peer => "/p2p/ID, with the id of the node (it prints its full addresses when it starts)",
        Purpose::Any | Purpose::Listen => "",
    };
    if let Ok(socket) = bare.parse::<SocketAddr>() {
        return Some(format!("write it as {}{id}", of_socket(socket)));
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Some(format!("write it with a port, as {}{id}", of_socket(SocketAddr::new(ip, 7400))));
    }
    let (host, port) = bare.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let host_fits = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    host_fits.then(|| match purpose {
        Purpose::Listen => format!("write it as /ip4/0.0.0.0/tcp/{port}; 0.0.0.0 is every address of this machine"),
        Purpose::Any | Purpose::Peer => format!("write it as /dns4/{host}/tcp/{port}{id}"),
    })
}

/// Advice for an address of a right form at which no node can listen.
pub fn for_listening(address: &Multiaddr) -> Option<String> {
    let by_number = matches!(address.iter().next(), Some(Protocol::Ip4(_) | Protocol::Ip6(_)));
    let with_id = matches!(address.iter().last(), Some(Protocol::P2p(_)));
    match (by_number, with_id) {
        (true, false) => None,
        (true, true) => Some("leave /p2p/ and the id away: a node listens under its own".into()),
        (false, _) => {
            let all = "/ip4/0.0.0.0/tcp/7400 is every address of this machine";
            Some(format!("a node listens at a number, not at a name; {all}"))
        }
    }
}

fn of_socket(socket: SocketAddr) -> String {
    match socket {
        SocketAddr::V4(s) => format!("/ip4/{}/tcp/{}", s.ip(), s.port()),
        SocketAddr::V6(s) => format!("/ip6/{}/tcp/{}", s.ip(), s.port()),
    }
}

/// Walks through the parts and names the first wrong one.
fn for_parts(text: &str) -> Option<String> {
    let mut parts = text.split('/').skip(1);
    while let Some(name) = parts.next() {
        match name {
            "" => return Some("there is an empty part (two slashes in a row, or one at the end)".into()),
            "quic-v1" | "quic" | "p2p-circuit" => continue,
            _ => {}
        }
        let value = parts.next();
        let advice = match (name, value) {
            (name, None) if NAMES.contains(&name) => Some(format!("`/{name}` needs a value behind it")),
            ("ip4", Some(v)) if v.parse::<std::net::Ipv4Addr>().is_err() => {
                Some(format!("`{}` is no IPv4 address{}", shown(v), or_other_family(v)))
            }
            ("ip6", Some(v)) if v.parse::<std::net::Ipv6Addr>().is_err() => {
                Some(format!("`{}` is no IPv6 address{}", shown(v), or_other_family(v)))
            }
            ("tcp" | "udp", Some(v)) if v.parse::<u16>().is_err() => {
                Some(format!("`{}` is no port: it has to be 1 to 65535", shown(v)))
            }
            ("p2p", Some(v)) if v.parse::<libp2p::PeerId>().is_err() => {
                Some(format!("`{}` is no peer id: copy it whole, it starts with 12D3KooW", shown(v)))
            }
            (name, _) if !NAMES.contains(&name) => Some(for_name(name)),
            _ => None,
        };
        if advice.is_some() {
            return advice;
        }
    }
    None
}

fn or_other_family(value: &str) -> &'static str {
    match value.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => "; for it write /ip4/",
        Ok(IpAddr::V6(_)) => "; for it write /ip6/",
        Err(_) => "; for a name write /dns4/",
    }
}

fn for_name(name: &str) -> String {
    match crate::config_file::nearest(name, NAMES) {
        Some(near) => format!("`{}` is not known here; did you mean `{near}`?", shown(name)),
        None => format!("`{}` is not known here; an address looks like {EXAMPLE}", shown(name)),
    }
}

fn shown(part: &str) -> String {
    crate::untrusted::printable(part)
}

/// Advice for a multiaddr of a form that Starling does not speak.
pub fn for_shape(address: &Multiaddr) -> String {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    match parts.as_slice() {
        [] => format!("it is empty; an address looks like {EXAMPLE}"),
        [Protocol::P2p(_)] => "it names a node but not where it is; put /ip4/HOST/tcp/PORT before it".into(),
        [_] | [_, Protocol::P2p(_)] => "it has no port; add /tcp/PORT after the host".into(),
        [_, Protocol::Udp(_)] | [_, Protocol::Udp(_), Protocol::P2p(_)] => {
            "UDP is used for QUIC only; add /quic-v1 after the port".into()
        }
        parts if parts.iter().any(|p| matches!(p, Protocol::Quic)) => "write /quic-v1 instead of /quic".into(),
        parts if parts.iter().any(|p| matches!(p, Protocol::P2pCircuit)) => {
            "a relayed address is RELAY/p2p/RELAY-ID/p2p-circuit/p2p/NODE-ID".into()
        }
        _ => format!("only TCP and QUIC are spoken here; an address looks like {EXAMPLE}"),
    }
}
