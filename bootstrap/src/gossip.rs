//! Gossip for small announcements of a run: strictly signed, judged before it is passed on, bounded.
//!
//! gossipsub checks signatures while it decodes the bytes of a connection, before it asks its user. It does so also for
//! repeated messages and for peers that it no longer listens to. So strangers are read at a limited rate ([`Paced`]),
//! and one read holds one message.
//!
//! Tensor data never travels here. Every message is at most [`MESSAGE_BYTES_MAX`] long and named by its content and
//! author, so a replay within the cache's time is dropped. The user of this module keeps its own window for older ones.

use crate::doors::Doors;
use crate::pace::Paced;
use libp2p::gossipsub::{
    self, ConfigBuilder, IdentTopic, IdentityTransform, MaxCountSubscriptionFilter, MessageAuthenticity, MessageId,
    PeerScoreParams, PeerScoreThresholds, TopicScoreParams, ValidationMode, WhitelistSubscriptionFilter,
};
use libp2p::identity::Keypair;
use starling_protocol::limits::{CONTROL_BYTES_MAX, MEMBERS_MAX};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Bytes of one message: a control message and gossipsub's own envelope.
pub const MESSAGE_BYTES_MAX: usize = CONTROL_BYTES_MAX + 1024;
/// Messages that travel together. Each costs a check of its signature; gossipsub sends each by itself.
const TOGETHER_MAX: usize = 1;
/// Messages that wait for one slow peer; further ones are not sent to it.
const QUEUE_MAX: usize = 256;
const DUPLICATE_CACHE: Duration = Duration::from_secs(120);
/// Penalty for rejected messages, multiplied by the square of their number: three graylist a peer.
const INVALID_WEIGHT: f64 = -20.0;

/// gossipsub that accepts only its own topics.
pub type Gossipsub = gossipsub::Behaviour<IdentityTransform, MaxCountSubscriptionFilter<WhitelistSubscriptionFilter>>;
/// The behaviour.
pub type Behaviour = Paced<Gossipsub>;

/// gossipsub, subscribed to `topic`. An error is in gossipsub's words: its own check of its settings failed.
pub fn build(keypair: &Keypair, topic: &IdentTopic, doors: Doors) -> Result<Behaviour, String> {
    let config = ConfigBuilder::default()
        .protocol_id_prefix("/starling/gossip/1")
        .validation_mode(ValidationMode::Strict)
        .validate_messages()
        .max_transmit_size(MESSAGE_BYTES_MAX)
        .connection_handler_queue_len(QUEUE_MAX)
        .max_publish_messages(TOGETHER_MAX)
        .max_control_messages_sent(QUEUE_MAX)
        .duplicate_cache_time(DUPLICATE_CACHE)
        .heartbeat_initial_delay(Duration::from_millis(500))
        .flood_publish(false)
        .message_id_fn(message_id)
        .build()
        .map_err(|e| e.to_string())?;
    let filter = MaxCountSubscriptionFilter {
        filter: WhitelistSubscriptionFilter(HashSet::from([topic.hash()])),
        max_subscribed_topics: 4,
        max_subscriptions_per_request: 16,
    };
    let signed = MessageAuthenticity::Signed(keypair.clone());
    let mut gossip = Gossipsub::new_with_subscription_filter(signed, config, filter).map_err(str::to_owned)?;
    gossip.with_peer_score(score_of_peers(topic), PeerScoreThresholds::default())?;
    gossip.subscribe(topic).map_err(|e| e.to_string())?;
    Ok(Paced::new(gossip, doors))
}

/// Named by content and author: a peer that repeats another's words under its own name does not suppress them.
fn message_id(message: &gossipsub::Message) -> MessageId {
    let mut hash = blake3::Hasher::new();
    let author = message.source.map(|author| author.to_bytes()).unwrap_or_default();
    // The author's length is hashed too, so that no other author and content give the same bytes.
    hash.update(&(author.len() as u64).to_le_bytes()).update(&author).update(&message.data);
    MessageId::from(hash.finalize().as_bytes().to_vec())
}

/// Peers lose score for invalid messages. They lose none for silence (announcements are rare), nor for sharing an IP
/// address with the rest of a flock behind one NAT or on one machine.
fn score_of_peers(topic: &IdentTopic) -> PeerScoreParams {
    let of_topic = TopicScoreParams {
        time_in_mesh_quantum: Duration::from_secs(1),
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: INVALID_WEIGHT,
        invalid_message_deliveries_decay: 0.9,
        ..TopicScoreParams::default()
    };
    PeerScoreParams {
        topics: [(topic.hash(), of_topic)].into(),
        ip_colocation_factor_threshold: MEMBERS_MAX as f64,
        ip_colocation_factor_whitelist: [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].into(),
        retain_score: Duration::from_secs(600),
        ..PeerScoreParams::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_two_authors_are_two_messages() {
        let topic = IdentTopic::new("starling/1/test").hash();
        let message = |source, data: &[u8]| {
            message_id(&gossipsub::Message {
                source,
                data: data.to_vec(),
                sequence_number: Some(1),
                topic: topic.clone(),
            })
        };
        let [one, other] = [libp2p::PeerId::random(), libp2p::PeerId::random()].map(Some);
        assert_ne!(message(one, b"here"), message(other, b"here"));
        assert_ne!(message(one, b"here"), message(one, b"there"));
        assert_eq!(message(one, b"here"), message(one, b"here"));
    }

    #[test]
    fn the_settings_pass_gossipsubs_own_checks() {
        let topic = IdentTopic::new("starling/1/test");
        let mut gossip = build(&Keypair::generate_ed25519(), &topic, Doors::default()).unwrap();
        assert_eq!(gossip.inner_mut().topics().collect::<Vec<_>>(), [&topic.hash()]);
    }
}
