//! The way from a ticket to its run: the run's specification, from a node that the ticket names, or that its well-known
//! peers know. A joiner asks for it before anything else, since all that it sets up follows from it.

use super::text::Search;
use crate::exit::{Code, Failure};
use crate::net::fetch::{Expect, FetchRequest, NothingToFetch};
use crate::net::{NetEvents, NetHandle, NetOptions, NetStatus, Network};
use futures::future::FutureExt;
use futures::stream::StreamExt;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::dialer::Trouble;
use starling_bootstrap::identity::{self, Identity};
use starling_bootstrap::ticket::Ticket;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId, wire};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The time after which a joiner that nobody answers gives up, and the pause between its words meanwhile.
const GIVE_UP: Duration = Duration::from_secs(60);
/// The local network is asked, too, if nobody answers for so long. Its nodes hear of the question's key then, and go on
/// dialing it for a while when it is gone.
const BY_TICKET_ALONE: Duration = Duration::from_secs(8);
const TELL_EVERY: Duration = Duration::from_secs(10);
/// The pause between two looks at who is connected.
const LOOK: Duration = Duration::from_millis(200);
/// Addresses that are named in words.
const SHOWN_MAX: usize = 4;

/// Fetches the specification of the ticket's run; `bootstrap` are further peers to begin with. The question listens at
/// `listen`, on free ports, so that routers treat it as they treat a node.
///
/// It comes from a key of its own, made for it: the node's own key lies in the node's folder, whose default place is
/// known once the run's name is. The network does not announce that key, which is soon gone.
///
/// # Errors
/// In words for the user: nobody answers, or the run is one of another release.
pub async fn specification(
    ticket: &Ticket,
    bootstrap: Vec<PeerAddress>,
    (listen, mdns): (Vec<Multiaddr>, bool),
) -> Result<RunSpec, Failure> {
    let within = if mdns { BY_TICKET_ALONE } else { GIVE_UP };
    let mut found = question(ticket, &bootstrap, (&listen, false), within).await;
    if found.is_err() && mdns {
        found = question(ticket, &bootstrap, (&listen, true), GIVE_UP.saturating_sub(BY_TICKET_ALONE)).await;
    }
    wire::decode_spec(&found?).map_err(|error| {
        let why = "the run of this ticket cannot be read by this release";
        Failure::message(Code::Refused, format!("{why} ({error}): run the release of its members"))
    })
}

/// Asks for the specification's bytes under a key of its own.
async fn question(
    ticket: &Ticket,
    bootstrap: &[PeerAddress],
    (listen, mdns): (&[Multiaddr], bool),
    within: Duration,
) -> Result<Vec<u8>, Failure> {
    let identity = Identity::generate().map_err(|e| Failure::new(Code::Refused, e))?;
    let options = NetOptions {
        run: ticket.run,
        listen: listen.to_vec(),
        advertise: Vec::new(),
        bootstrap: ticket.addresses.iter().chain(bootstrap).cloned().collect(),
        mdns,
        relay: false,
        name: None,
        hidden: true,
        source: Arc::new(NothingToFetch),
        verify: None,
    };
    let (net, mut events) = Network::start(&identity, options).map_err(|e| Failure::new(Code::Refused, e))?;
    let found = ask(&net, &mut events, ticket, within).await;
    net.shutdown().await;
    found
}

/// Asks every node that is reached, until one sends the bytes with the ticket's digest. Ctrl-C keeps its default
/// action, since nothing is on the disk yet: a process that waits for that signal once does not get the action back.
async fn ask(net: &NetHandle, events: &mut NetEvents, ticket: &Ticket, within: Duration) -> Result<Vec<u8>, Failure> {
    let began = Instant::now();
    let mut tell_at = began + TELL_EVERY;
    let mut look = tokio::time::interval(LOOK);
    let mut search = Search::new();
    loop {
        tokio::select! {
            event = events.recv() => if event.is_none() {
                return Err(Failure::message(Code::Refused, "the network stopped; see the log"));
            },
            Some((peer, spec)) = search.answers.next() => {
                search.asking.remove(&peer);
                if let Some(spec) = spec {
                    return Ok(spec);
                }
            }
            _ = look.tick() => {
                let now = Instant::now();
                let is_stranger = |peer: &NodeId| net.is_stranger(peer);
                search.ask(now, net.shuffled(), is_stranger, |peer| fetch(net, peer, ticket.run).boxed());
                let is_over = now >= began + within;
                if now < tell_at && !is_over {
                    continue;
                }
                let silence = silence(ticket, &net.status().await);
                if is_over {
                    let advice = "check that the flock runs and that this machine reaches it, or ask for a new ticket";
                    return Err(Failure::message(Code::Refused, format!("{silence}; {advice}")));
                }
                tracing::warn!("{silence}; trying on");
                tell_at = now + TELL_EVERY;
            }
        }
    }
}

async fn fetch(net: &NetHandle, peer: NodeId, run: Digest) -> (NodeId, Option<Vec<u8>>) {
    let request = FetchRequest::Spec;
    let expected = Expect::of(&request);
    match net.fetch(peer, request, expected).await {
        Ok(spec) if wire::spec_digest(&spec) == run => return (peer, Some(spec)),
        Ok(_) => tracing::warn!("{} sent the specification of another run; asking others", peer.short()),
        Err(e) => tracing::debug!("{} does not give the run's specification: {e}", peer.short()),
    }
    (peer, None)
}

/// The state of the search in words: which of the ticket's peers are not reached, and why.
fn silence(ticket: &Ticket, status: &NetStatus) -> String {
    let named: BTreeSet<_> = ticket.addresses.iter().map(|address| address.peer).collect();
    let reached = status.peers.iter().any(|peer| named.contains(&identity::peer_id(&peer.node)));
    let missed: Vec<&Trouble> = status.troubles.iter().filter(|trouble| named.contains(&trouble.peer)).collect();
    let mut reasons: Vec<String> = missed.iter().take(SHOWN_MAX).map(|trouble| reason(ticket, trouble)).collect();
    if missed.len() > SHOWN_MAX {
        reasons.push(format!("and {} more", missed.len() - SHOWN_MAX));
    }
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    if reached {
        format!("peers of the ticket answer, and none of them knows a node of its run that does{reasons}")
    } else {
        format!("nobody answers at the ticket's addresses{reasons}")
    }
}

fn reason(ticket: &Ticket, trouble: &Trouble) -> String {
    let first = || ticket.addresses.iter().find(|of| of.peer == trouble.peer).map(|of| of.address.clone());
    let address = trouble.address.clone().or_else(first);
    format!("{}: {}", address.map_or_else(|| "a peer".to_owned(), |address| address.to_string()), trouble.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fetch::{Answer, FetchRefusal, FetchSource};
    use crate::net::{NetEvent, PeerStatus};
    use starling_bootstrap::addresses;
    use starling_bootstrap::discovery::dialer::Wish;
    use starling_bootstrap::discovery::reason::Reason;

    fn at(peer: u8, port: u16) -> PeerAddress {
        let address = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address");
        PeerAddress { peer: identity::peer_id(&NodeId([peer; 32])), address }
    }

    fn trouble(of: &PeerAddress) -> Trouble {
        let (wish, reason) = (Wish::Anchor, Reason::Refused);
        let address = Some(of.address.clone());
        Trouble { peer: of.peer, wish, address, reason, rounds: 1, retry_in: Duration::ZERO }
    }

    #[test]
    fn who_does_not_answer_is_told_with_the_reason() {
        let addresses = vec![at(1, 7401), at(2, 7402)];
        let ticket = Ticket { run: Digest([7; 32]), addresses: addresses.clone(), admission: None };
        let all: Vec<Trouble> = addresses.iter().map(trouble).chain([trouble(&at(3, 7403))]).collect();
        let nobody = NetStatus { troubles: all.clone(), ..NetStatus::default() };
        let said = silence(&ticket, &nobody);
        assert!(said.starts_with("nobody answers at the ticket's addresses (/ip4/127.0.0.1/tcp/7401: "), "{said}");
        assert!(said.contains("7402") && !said.contains("7403"), "{said}");
        let (node, address) = (NodeId([2; 32]), addresses[1].address.clone());
        let reached = PeerStatus { node, address, agent: String::new(), up: false, round_trip: None };
        let some = NetStatus { peers: vec![reached], troubles: all[..1].to_vec(), ..NetStatus::default() };
        let said = silence(&ticket, &some);
        assert!(said.starts_with("peers of the ticket answer, and none of them knows"), "{said}");
        assert!(said.contains("7401"), "{said}");
    }

    fn options(run: Digest, bootstrap: Vec<PeerAddress>, spec: Option<Vec<u8>>) -> NetOptions {
        let hidden = spec.is_none();
        NetOptions {
            run,
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
            advertise: Vec::new(),
            bootstrap,
            mdns: false,
            relay: false,
            name: None,
            hidden,
            source: Arc::new(Serves(spec)),
            verify: None,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_specification_comes_from_a_peer_of_the_ticket_and_must_be_its_runs() {
        let right = wire::encode_spec(&starling_protocol::sample::spec());
        let run = wire::spec_digest(&right);
        let (mut addresses, mut peers, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        // The first lies.
        for spec in [vec![7; 64], right.clone()] {
            let node = Identity::generate().expect("a key");
            let options = options(run, Vec::new(), Some(spec));
            let (net, mut events) = Network::start(&node, options).expect("a network");
            let address = loop {
                if let NetEvent::Listening { address } = events.recv().await.expect("it listens") {
                    break address;
                }
            };
            addresses.push(addresses::split(&address).expect("a whole address"));
            peers.push(node.node_id());
            kept.push((net, events));
        }
        let asker = Identity::generate().expect("a key");
        let (net, mut events) = Network::start(&asker, options(run, addresses.clone(), None)).expect("a network");
        let both = async {
            let mut up = BTreeSet::new();
            while up.len() < peers.len() {
                if let NetEvent::PeerUp { peer } = events.recv().await.expect("the network runs") {
                    up.insert(peer);
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("both are reached");
        assert_eq!(fetch(&net, peers[0], run).await, (peers[0], None), "it sends another specification");
        assert_eq!(fetch(&net, peers[1], run).await, (peers[1], Some(right)));
        net.shutdown().await;

        let ticket = Ticket { run, addresses, admission: None };
        let found = specification(&ticket, Vec::new(), (Vec::new(), false)).await;
        assert_eq!(found.expect("the second tells the truth"), starling_protocol::sample::spec());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_joiner_that_nobody_answers_gives_up_and_says_where_it_asked() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("its address").port();
        drop(taken);
        let peer = Identity::generate().expect("a key").peer_id();
        let address = PeerAddress { peer, ..at(1, port) };
        let ticket = Ticket { run: Digest([7; 32]), addresses: vec![address], admission: None };
        let asked = question(&ticket, &[], (&[], false), Duration::from_secs(3)).await;
        let failure = asked.expect_err("nobody is there");
        let said = failure.error.to_string();
        assert_eq!(failure.code, Code::Refused, "{said}");
        let begins = format!("nobody answers at the ticket's addresses (/ip4/127.0.0.1/tcp/{port}: refused: ");
        assert!(said.starts_with(&begins) && said.ends_with("or ask for a new ticket"), "{said}");
    }

    /// A specification, or nothing.
    struct Serves(Option<Vec<u8>>);

    impl FetchSource for Serves {
        fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
            match (request, &self.0) {
                (FetchRequest::Spec, Some(spec)) => Ok(spec.clone().into()),
                _ => Err(FetchRefusal::NotFound),
            }
        }
    }
}
