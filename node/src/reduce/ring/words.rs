//! The round of words with which any attempt of a ring but the first begins: each member says which finished sums it
//! has, and passes on what the others say.
//!
//! The last word that a member receives is its own. If it has changed on the way, any member may have done that, so
//! nobody is refused for it. Without this, the two members that know different words would expect different frames of
//! each other, and one of two honest ones would be refused.

use crate::net::BulkStream;
use crate::reduce::ReduceJob;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::links::BulkLinks;
use crate::reduce::opening;
use crate::reduce::progress::{Progress, of_ring};
use crate::reduce::stream::fault;
use crate::reduce::sums::Sheet;
use crate::reduce::word::{self, WordKind};
use starling_protocol::NodeId;
use starling_protocol::update::kept;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The neighbours in the ring.
#[derive(Clone, Copy)]
pub(super) struct Neighbours {
    pub next: NodeId,
    pub previous: NodeId,
}

/// The streams to and from them.
pub(super) struct Ends {
    pub to: BulkStream,
    pub from: BulkStream,
}

impl Neighbours {
    fn lost(&self, error: std::io::Error) -> ReduceError {
        fault(self.next, PeerFault::Lost(error))
    }
}

/// Opens this attempt's stream to the next member.
pub(super) async fn open(
    links: &Arc<dyn BulkLinks>,
    job: &ReduceJob,
    neighbours: Neighbours,
) -> Result<BulkStream, ReduceError> {
    let stream = links.open(neighbours.next).await;
    let mut stream = stream.map_err(|e| fault(neighbours.next, PeerFault::Unreachable(e.to_string())))?;
    let written = stream.write_all(&opening::encode(&job.run, &job.key)).await;
    written.map_err(|error| neighbours.lost(error))?;
    Ok(stream)
}

/// Takes the stream from the member before.
pub(super) async fn accept(
    links: &Arc<dyn BulkLinks>,
    job: &ReduceJob,
    neighbours: Neighbours,
) -> Result<BulkStream, ReduceError> {
    let stream = links.accept(job.key, neighbours.previous).await;
    stream.map_err(|error| fault(neighbours.previous, PeerFault::Silent(error)))
}

/// Opens and accepts the streams of an attempt, and hears all members' words. Returns which finished sums each member
/// has, by position: none at all if one of them keeps nothing.
pub(super) async fn exchange(
    links: &Arc<dyn BulkLinks>,
    (job, position): (&ReduceJob, usize),
    neighbours: Neighbours,
    sheet: &Sheet,
    progress: &Progress,
) -> Result<(Ends, Vec<Vec<bool>>), ReduceError> {
    let members = job.members.len();
    let mut to = open(links, job, neighbours).await?;
    to.flush().await.map_err(|error| neighbours.lost(error))?;
    let mut from = tokio::select! {
        biased;
        from = accept(links, job, neighbours) => from?,
        error = closed(&mut to) => return Err(neighbours.lost(error)),
    };
    let own = sheet.word();
    if own.is_empty() {
        return Err(ReduceError::Over);
    }
    let mut heard: Vec<Vec<bool>> = vec![Vec::new(); members];
    let (mut word, mut bytes) = (own.clone(), 0);
    for back in 1..=members {
        word = pass((&mut to, &mut from), &word, neighbours).await?;
        bytes += (word::WORD_HEADER_BYTES + word.len().div_ceil(8)) as u64;
        progress.reach(of_ring(0, bytes));
        heard[(position + members - back) % members].clone_from(&word);
    }
    if word != own {
        sheet.distrust();
        return Err(fault(neighbours.previous, PeerFault::Garbled));
    }
    let finished = kept::agreed(heard).unwrap_or_else(|| {
        sheet.keep_nothing();
        vec![Vec::new(); members]
    });
    Ok((Ends { to, from }, finished))
}

/// Sends one word on, and reads another of the same length meanwhile: a word may be longer than all buffers.
async fn pass(
    (to, from): (&mut BulkStream, &mut BulkStream),
    word: &[bool],
    neighbours: Neighbours,
) -> Result<Vec<bool>, ReduceError> {
    let (mut answers, mut to) = tokio::io::split(to);
    let bytes = word::encode(WordKind::Finished, word);
    let send = async {
        let sent = async {
            to.write_all(&bytes).await?;
            to.flush().await
        };
        sent.await.map_err(|error| neighbours.lost(error))
    };
    let read = async {
        let read = word::read(from, WordKind::Finished, word.len()).await;
        read.map_err(|what| fault(neighbours.previous, what))
    };
    tokio::select! {
        biased;
        both = futures::future::try_join(send, read) => both.map(|((), heard)| heard),
        error = closed(&mut answers) => Err(neighbours.lost(error)),
    }
}

/// Returns when the next member has closed the stream to it, or the connection is gone. It writes nothing, so that the
/// read ends only then. Without it the next member may wait for the lost stream, and this node for words that depend on
/// it, until a deadline ends the attempt.
async fn closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Error {
    match stream.read(&mut [0]).await {
        Err(error) => error,
        Ok(_) => std::io::ErrorKind::BrokenPipe.into(),
    }
}
