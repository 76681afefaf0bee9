//! One identity: its network, the nodes that it greets, and its messages to them.

use super::super::plot::Attack;
use super::told::Told;
use super::world::{SIGN, World};
use super::{fetching, forgery, statement};
use crate::net::{NetEvent, NetHandle, NetOptions, Network};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use starling_bootstrap::identity::{self, Identity};
use starling_protocol::NodeId;
use starling_protocol::identity::{Ed25519Signer, Ed25519Verifier};
use starling_protocol::message::{Head, Message};
use starling_protocol::wire;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, interval};

/// Time between two heads, and between two looks for nodes.
const BEAT: Duration = Duration::from_millis(500);
/// Pieces of evidence to each node at a beat, and in all.
const EVIDENCE: usize = 16;
const EVIDENCE_MAX: usize = 256;
/// False addresses that one identity advertises, at which no node is.
const NOWHERE: usize = 16;
/// Ports on which identities listen.
const PORTS: std::ops::Range<u16> = 20_000..60_000;
/// Age at which an old head is asked for.
const OLD: Duration = Duration::from_secs(4);

struct Persona {
    world: Arc<World>,
    place: usize,
    signer: Ed25519Signer,
    net: NetHandle,
    told: Arc<Told>,
    /// Nodes that are connected.
    peers: BTreeSet<NodeId>,
    progress: u64,
    evidence: usize,
    /// Nodes that it has sent a Witness.
    witnessed: BTreeSet<PeerId>,
    began: Instant,
}

/// Lives until its network ends, or until it is done.
pub async fn live(world: Arc<World>, place: usize, own: &Identity) {
    let told = Arc::new(Told::new(world.clone()));
    // A short-lived identity goes straight to where the nodes are.
    let known = world.known();
    let short = place > 0 && world.plot.life_ms > 0 && !known.is_empty();
    let port = rand::random_range(PORTS);
    let listen: Vec<Multiaddr> = world.net.listen.iter().filter_map(|listen| at_port(listen, port)).collect();
    let lies = world.plot.attacks.contains(&Attack::FalseAddresses);
    let options = NetOptions {
        // A node that advertises an address asks for no place on a relay.
        advertise: if lies { false_addresses(&world) } else { listen.clone() },
        listen,
        bootstrap: if short { known } else { world.net.bootstrap.clone() },
        mdns: false,
        source: told.clone(),
        ..world.net.clone()
    };
    let (net, mut events) = match Network::start(own, options) {
        Ok(started) => started,
        Err(why) => return tracing::warn!("an identity has no network: {why}"),
    };
    let mut persona = Persona {
        world,
        place,
        signer: own.signer(),
        net,
        told,
        peers: BTreeSet::new(),
        progress: 0,
        evidence: 0,
        witnessed: BTreeSet::new(),
        began: Instant::now(),
    };
    let mut beat = interval(BEAT);
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => persona.hear(event),
                None => return,
            },
            _ = beat.tick() => persona.beat().await,
        }
        if short && persona.has_witnessed() {
            // Sends what is still queued.
            return persona.net.shutdown().await;
        }
    }
}

/// The same host with another port; TCP alone, so that a process can afford many networks at a time.
fn at_port(listen: &Multiaddr, port: u16) -> Option<Multiaddr> {
    let host = listen.iter().next()?;
    let tcp = listen.iter().any(|part| matches!(part, Protocol::Tcp(_)));
    tcp.then(|| Multiaddr::empty().with(host).with(Protocol::Tcp(port)))
}

/// Addresses at which no node is, and those of the flock's nodes.
fn false_addresses(world: &World) -> Vec<Multiaddr> {
    let nowhere = (0..NOWHERE).map(|_| {
        let ip = Ipv4Addr::new(45, 200, rand::random(), rand::random());
        Multiaddr::empty().with(Protocol::Ip4(ip)).with(Protocol::Tcp(7400))
    });
    let others = world.known().into_iter().map(|known| known.address);
    nowhere.chain(others).collect()
}

impl Persona {
    fn does(&self, attack: Attack) -> bool {
        self.world.plot.attacks.contains(&attack)
    }

    fn say(&self, to: NodeId, message: &Message) {
        if let Some(bytes) = statement::sealed(&self.world, &self.signer, message) {
            self.net.send_control(to, bytes);
        }
    }

    /// Whether it has told every known node.
    fn has_witnessed(&self) -> bool {
        self.does(Attack::Witness) && self.world.known().iter().all(|known| self.witnessed.contains(&known.peer))
    }

    fn hear(&mut self, event: NetEvent) {
        match event {
            NetEvent::PeerUp { peer } => {
                self.world.tally.sessions.fetch_add(1, Relaxed);
                self.peers.insert(peer);
                if self.does(Attack::Evidence) {
                    self.spread_evidence(peer);
                }
                self.say(peer, &statement::hello(&self.world));
            }
            NetEvent::PeerDown { peer, reason } => {
                tracing::info!(peer = %peer.short(), "a node has let go: {reason}");
                self.world.tally.ended.fetch_add(1, Relaxed);
                self.peers.remove(&peer);
            }
            NetEvent::Control { from, bytes, .. } => self.read(from, &bytes),
            _ => {}
        }
    }

    fn read(&mut self, from: NodeId, bytes: &[u8]) {
        let Ok(opened) = wire::open(&Ed25519Verifier, &self.world.run, bytes) else { return };
        match opened.message {
            Message::Hello(hello) if hello.boot != SIGN => {
                self.world.is_honest(from);
                if self.does(Attack::Witness) {
                    self.say(from, &statement::witness(hello.incarnation));
                    self.witnessed.insert(identity::peer_id(&from));
                }
                if self.does(Attack::HoldFetch) {
                    fetching::hold(&self.world, &self.net, from);
                }
                if self.does(Attack::SlowRead) {
                    fetching::leave_unread(&self.world, &self.net, from);
                }
                if self.does(Attack::FloodFetch) {
                    fetching::flood(&self.world, &self.net, from);
                }
            }
            Message::Head(head) => {
                self.world.note_head(&from, &head);
                self.ask(from);
            }
            _ => {}
        }
    }

    /// Asks for the flock's chain, if no other identity has yet.
    fn ask(&self, peer: NodeId) {
        let wants = self.does(Attack::Split) || self.does(Attack::OldHead) && self.began.elapsed() >= OLD;
        let Some(head) = self.world.newest().filter(|_| wants && self.world.is_to_ask()) else { return };
        let (world, net) = (self.world.clone(), self.net.clone());
        tokio::spawn(async move {
            let truth = fetching::truth(&net, peer, head).await;
            tracing::info!(peer = %peer.short(), records = truth.as_ref().map(|t| t.links.len()), "asked for the truth");
            world.heard(truth);
        });
    }

    async fn beat(&mut self) {
        self.progress += 1;
        let now = self.told.now();
        if let Some(story) = forgery::story(&self.world, self.place, &self.signer, now.as_ref()) {
            tracing::info!(lineage = %story.head.lineage, seq = story.head.seq, "a new story");
            self.told.tell(story);
        }
        let story = self.told.now();
        for peer in self.peers.clone() {
            if let Some(story) = &story {
                self.say(peer, &Message::Head(Head { progress: self.progress, ..story.head.clone() }));
                for certificate in &story.shown {
                    self.say(peer, &Message::Certificate(certificate.clone()));
                }
            }
            if self.does(Attack::Evidence) {
                self.spread_evidence(peer);
            }
        }
        // Identities that live on note where nodes are, and look for more of them.
        for status in self.net.status().await.peers {
            self.world.note_place(status.node, &status.address);
        }
        for known in self.world.known() {
            self.net.connect(known).await;
        }
    }

    fn spread_evidence(&mut self, to: NodeId) {
        for _ in 0..EVIDENCE.min(EVIDENCE_MAX.saturating_sub(self.evidence)) {
            if let Some(evidence) = statement::evidence(&self.world) {
                self.evidence += 1;
                self.say(to, &evidence);
            }
        }
    }
}
