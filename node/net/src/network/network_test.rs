use super::*;
use crate::contacts::Contacts;
use crate::fetch::NothingToFetch;
use starling_bootstrap::addresses::{PeerAddress, split};
use starling_protocol::Digest;
use std::sync::Arc;
use tokio::time::timeout;

/// No test measures it.
const HANG: Duration = Duration::from_secs(60);

struct Node {
    net: NetHandle,
    events: NetEvents,
}

/// A node on loopback that knows these peers, and its address.
async fn start(bootstrap: Vec<PeerAddress>) -> (Node, PeerAddress) {
    let options = NetOptions {
        run: Digest([0x5a; 32]),
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        advertise: Vec::new(),
        bootstrap,
        mdns: false,
        relay: false,
        name: None,
        hidden: false,
        source: Arc::new(NothingToFetch),
        verify: None,
    };
    let (net, events) = Network::start(&Identity::generate().unwrap(), options).unwrap();
    let mut node = Node { net, events };
    let address =
        node.until(|event| if let NetEvent::Listening { address } = event { split(address).ok() } else { None });
    let address = address.await;
    (node, address)
}

impl Node {
    async fn until<T>(&mut self, mut fits: impl FnMut(&NetEvent) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.events.recv().await.expect("the network runs");
                if let Some(found) = fits(&event) {
                    return found;
                }
            }
        };
        timeout(HANG, search).await.expect("it never happened")
    }

    async fn is_met(&mut self, other: NodeId) {
        self.until(|event| matches!(event, NetEvent::PeerUp { peer } if *peer == other).then_some(())).await;
    }
}

/// In a large flock members stay known, but connections are with neighbours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_no_contacts_part_and_meet_again_as_contacts() {
    let (_hub, known) = start(Vec::new()).await;
    let ((mut a, _), (mut b, _)) = (start(vec![known.clone()]).await, start(vec![known]).await);
    let ids = [a.net.me(), b.net.me()];
    a.is_met(ids[1]).await;
    b.is_met(ids[0]).await;
    let contacts = |near: &[NodeId]| {
        let near = near.iter().copied().collect();
        Some(Contacts { near, parts_after: Some(Duration::from_millis(200)), meets_strangers: false })
    };
    for node in [&a, &b] {
        node.net.set_standing(ids.to_vec(), Vec::new());
        node.net.set_contacts(contacts(&[]));
    }
    for (node, other) in [(&mut a, ids[1]), (&mut b, ids[0])] {
        node.until(|event| matches!(event, NetEvent::PeerDown { peer, .. } if *peer == other).then_some(())).await;
        assert!(!node.net.is_stranger(&other));
    }
    // The next record makes neighbours of them.
    for node in [&a, &b] {
        node.net.set_contacts(contacts(&ids));
    }
    a.is_met(ids[1]).await;
    b.is_met(ids[0]).await;
}
