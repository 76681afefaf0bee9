//! Statements that strangers sign.

use super::world::{SIGN, World};
use starling_bootstrap::identity::Identity;
use starling_protocol::identity::Signer;
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{Evidence, Hello, Message, Ready, Stamp, Witness};
use starling_protocol::record::Measured;
use starling_protocol::{Digest, wire};

/// The bytes of a message; none if it cannot be sealed.
pub fn sealed(world: &World, signer: &dyn Signer, message: &Message) -> Option<Vec<u8>> {
    wire::seal(signer, &world.run, message).ok()
}

pub fn hello(world: &World) -> Message {
    let spec = world.spec_bytes.clone();
    Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot: SIGN, incarnation: SIGN })
}

/// "I have seen this incarnation of you sign nothing."
pub fn witness(incarnation: u64) -> Message {
    Message::Witness(Witness { incarnation, stamp: Stamp::default() })
}

/// Evidence against a key that was made for it; the contradiction is real.
pub fn evidence(world: &World) -> Option<Message> {
    let signer = Identity::generate().ok()?.signer();
    let [first, second] = [0, 1].map(|loss| sealed(world, &signer, &Message::Ready(ready(loss))));
    Some(Message::Evidence(Evidence { first: first?, second: second? }))
}

fn ready(loss_q16: u32) -> Ready {
    Ready {
        lineage: Digest([1; 32]),
        round: 1,
        base: Digest([2; 32]),
        state_root: Digest([3; 32]),
        boot: SIGN,
        start: 0,
        samples: 1,
        tokens: 1,
        steps: 1,
        loss_q16,
        payload: Digest([4; 32]),
        measured: Measured::default(),
        statements: Vec::new(),
        leave: false,
        merges: None,
        merged_tokens: 0,
        rtts: Vec::new(),
        amends: None,
    }
}
