//! The standard output of `starling-bootstrap`: one line an event, as text or as JSON.

use libp2p::{Multiaddr, PeerId};
use serde::Serialize;
use starling_protocol::NodeId;
use std::io::Write;
use std::net::SocketAddr;

/// One event. The field `event` of the JSON form is the variant's name.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Started { version: &'a str, node: String, peer: String },
    Metrics { url: String },
    Listening { address: String },
    Advertised { address: String },
    Reachable { address: String },
    Connected { peer: String, agent: &'a str },
    Disconnected { peer: String, reason: &'a str },
    Stopped,
}

/// Writes the lines. A reader that goes away does not stop the peer.
pub struct Report<'a> {
    out: &'a mut dyn Write,
    json: bool,
}

impl<'a> Report<'a> {
    pub fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json }
    }

    pub fn started(&mut self, node: &NodeId, peer: &PeerId) {
        let line = Line::Started { version: env!("CARGO_PKG_VERSION"), node: node.to_string(), peer: peer.to_string() };
        self.write(&line, None);
    }

    /// Reports the address of the metrics.
    pub fn metrics(&mut self, address: SocketAddr) {
        let url = format!("http://{address}/metrics");
        let text = format!("metrics {url}");
        self.write(&Line::Metrics { url }, Some(text));
    }

    /// Reports an address. `how`: listening, advertised or reachable.
    pub fn listening(&mut self, address: &Multiaddr, how: &str) {
        let address = address.to_string();
        let text = format!("{how} {address}");
        let line = match how {
            "advertised" => Line::Advertised { address },
            "reachable" => Line::Reachable { address },
            _ => Line::Listening { address },
        };
        self.write(&line, Some(text));
    }

    /// Reports a peer. `what`: connected (`detail`: the name of its program) or disconnected (`detail`: the reason).
    pub fn peer(&mut self, what: &str, peer: &PeerId, detail: &str) {
        let line = match what {
            "connected" => Line::Connected { peer: peer.to_string(), agent: detail },
            _ => Line::Disconnected { peer: peer.to_string(), reason: detail },
        };
        self.write(&line, Some(format!("{what} {peer} ({detail})")));
    }

    pub fn stopped(&mut self) {
        self.write(&Line::Stopped, None);
    }

    fn write(&mut self, line: &Line<'_>, text: Option<String>) {
        let shown = match self.json {
            true => serde_json::to_string(line).ok(),
            false => text,
        };
        if let Some(shown) = shown {
            // The reader may have gone; the peer's work is the network.
            let _ = writeln!(self.out, "{shown}").and_then(|()| self.out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_lines() {
        let address: Multiaddr = "/ip4/127.0.0.1/tcp/7400".parse().unwrap();
        let mut out = Vec::new();
        Report::new(&mut out, false).listening(&address, "listening");
        assert_eq!(out, b"listening /ip4/127.0.0.1/tcp/7400\n");
        let mut out = Vec::new();
        Report::new(&mut out, true).listening(&address, "listening");
        assert_eq!(out, b"{\"event\":\"listening\",\"address\":\"/ip4/127.0.0.1/tcp/7400\"}\n");
    }
}
