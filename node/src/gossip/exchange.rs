//! One exchange with one partner.

use super::opening;
use super::{PairError, PairKey, PairRouter};
use crate::coding::Coder;
use crate::net::{BulkStream, NetHandle};
use crate::reduce::PeerFault;
use crate::reduce::stream::{close, fill_frame, read_frame};
use futures::future::BoxFuture;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::frame::{FrameKind, FrameScope};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, update};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};

/// Most that a partner may have learned and drifted, as a multiple of this member's own. Leases differ by a factor of
/// eight at most, and so do honest norms; a partner with more would drag this member's contribution wherever it likes.
const NORM_FACTOR: f64 = 16.0;

/// The source of streams to partners: the network, or pipes in tests.
pub trait PairLinks: Send + Sync + 'static {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>>;
}

impl PairLinks for NetHandle {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        let net = self.clone();
        Box::pin(async move { net.open_pair(to).await.map_err(io::Error::other) })
    }
}

/// The vectors that this member sends: one f32 for each parameter.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    pub change: &'a [f32],
    /// None in the first exchange of a round, in which it is zero for all.
    pub drift: Option<&'a [f32]>,
}

/// The partner's vectors, encoded and checked.
#[derive(Debug, PartialEq)]
pub struct Theirs {
    pub change: Vec<u8>,
    pub drift: Option<Vec<u8>>,
}

/// Makes exchanges of one run.
#[derive(Clone)]
pub struct Exchanger {
    pub run: Digest,
    pub me: NodeId,
    pub codec: Codec,
    pub links: Arc<dyn PairLinks>,
    pub router: PairRouter,
}

impl Exchanger {
    /// Sends `mine` to `partner` and reads the partner's vectors. Waits without a deadline: a caller that drops the
    /// future leaves the exchange.
    ///
    /// # Errors
    /// [`PairError`]; then nothing of the partner's counts.
    pub async fn meet(&self, key: PairKey, partner: NodeId, mine: Offer<'_>) -> Result<Theirs, PairError> {
        let opens = self.me < partner;
        let stream = if opens {
            self.links.open(partner).await.map_err(PairError::Unreachable)?
        } else {
            self.router.accept(key, partner).await?
        };
        let set =
            AttemptKey { lineage: key.place.lineage, seq: key.place.round, attempt: key.exchange, set: key.place.base };
        let scope = FrameScope { run: self.run, key: set, codec: self.codec, elements: mine.change.len() };
        let (mut read, mut write) = tokio::io::split(stream);
        let say = async {
            if opens {
                write.write_all(&opening::encode(&self.run, &key)).await.map_err(PeerFault::Lost)?;
            }
            self.say(&mut write, &scope, mine).await
        };
        let ((), theirs) = tokio::try_join!(say, self.hear(&mut read, &scope, mine))?;
        // The last bytes may still be on their way, so the stream is closed in order, in the background.
        tokio::spawn(close(read.unsplit(write)));
        Ok(theirs)
    }

    async fn say(
        &self,
        stream: &mut WriteHalf<BulkStream>,
        scope: &FrameScope,
        mine: Offer<'_>,
    ) -> Result<(), PairError> {
        let (mut coder, mut payload, mut frame) = (Coder::new(self.codec), Vec::new(), Vec::new());
        for (kind, values) in vectors(mine) {
            for (chunk, values) in values.chunks(CHUNK_ELEMENTS).enumerate() {
                coder.encode(values, &mut payload).map_err(PairError::Own)?;
                fill_frame(&mut frame, scope, kind, chunk, &payload);
                stream.write_all(&frame).await.map_err(PeerFault::Lost)?;
            }
        }
        Ok(stream.flush().await.map_err(PeerFault::Lost)?)
    }

    async fn hear(
        &self,
        stream: &mut ReadHalf<BulkStream>,
        scope: &FrameScope,
        mine: Offer<'_>,
    ) -> Result<Theirs, PairError> {
        let coder = Coder::new(self.codec);
        let (mut payload, mut values) = (Vec::new(), vec![0.0; CHUNK_ELEMENTS]);
        let (mut heard, mut length) = (Vec::new(), 0.0);
        for (kind, own) in vectors(mine) {
            let (mut bytes, mut squares) = (Vec::new(), 0.0);
            for chunk in 0..update::chunks(own.len()) {
                read_frame(stream, scope, kind, chunk, &mut payload).await?;
                let values = &mut values[..update::chunk_elements(own.len(), chunk).len()];
                let refused = |source| PairError::Peer(PeerFault::Payload { chunk, source });
                coder.decode(&payload, values).map_err(refused)?;
                squares += norm2(values);
                bytes.extend_from_slice(&payload);
            }
            length += squares.sqrt();
            heard.push(bytes);
        }
        let own: f64 = vectors(mine).map(|(_, values)| norm2(values).sqrt()).sum();
        if length > NORM_FACTOR * own {
            return Err(PairError::Norm { times: length / own.max(f64::MIN_POSITIVE) });
        }
        let mut heard = heard.into_iter();
        Ok(Theirs { change: heard.next().unwrap_or_default(), drift: heard.next() })
    }
}

/// The vectors of an offer, in the order of sending.
fn vectors(offer: Offer<'_>) -> impl Iterator<Item = (FrameKind, &[f32])> {
    let drift = offer.drift.map(|drift| (FrameKind::Drift, drift));
    [(FrameKind::Change, offer.change)].into_iter().chain(drift)
}

fn norm2(values: &[f32]) -> f64 {
    values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}
