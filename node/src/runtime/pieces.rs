//! Fetching an update in pieces, from all sources and fellows at once.
//!
//! The next update is begun where the one before has no pieces left to ask for ([`Task::lanes`]), so that a far node
//! does not pause between two.
//!
//! Each piece is checked as it comes ([`Pieces`]), and served to fellows from then on. So the line of a lone founder
//! need not carry an update to each newcomer.

use super::catch_up::{Fetched, Progress, Task};
use super::sources::Begun;
use super::swarm;
use crate::net::fetch::{Expect, FetchRequest, Item, UPDATE_PIECE_BYTES};
use starling_protocol::NodeId;
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::update;
use starling_store::Pieces;
use std::sync::Arc;
use tokio::sync::mpsc;

const _: () = assert!(UPDATE_PIECE_BYTES == starling_store::UPDATE_PIECE_BYTES as u64);
/// Updates of fewer pieces, 4 MiB, are fetched whole: several at a time come in less time than the questions for one in
/// pieces.
const PIECES_MIN: usize = 16;
/// Fetched pieces that may wait to be kept.
const PIECES_WAITING: usize = 8;

impl Task {
    /// The update of a record in pieces; the record before it fixed the codec. `None` if it is too small, or if its
    /// length does not follow from the codec.
    ///
    /// # Errors
    /// The reason why it did not come. It may come whole.
    pub(super) async fn in_pieces(
        &self,
        record: &Record,
        codec: Codec,
        progress: Progress<'_>,
    ) -> Result<Option<Fetched>, String> {
        let length = self.longest(record, codec) as u64;
        if !codec.is_fixed() || Pieces::count_of(length) < PIECES_MIN {
            return Ok(None);
        }
        let values = {
            let _turn = self.asking.lock().await;
            self.pieces_of(record, length).await?
        };
        let digest = record.update;
        let arriving = self.store.begin_update(digest, values);
        let pieces = Arc::clone(arriving.pieces());
        let items = swarm::pieces_of(&digest, &pieces, &self.net.me());
        let fellows = swarm::of_update(&digest, &pieces, self.fellows.clone());
        let check = Arc::new(move |item: &Item, bytes: &[u8]| pieces.checks(item.index, bytes));
        let downloader = self.net.downloader(check).beside(fellows).within(self.lanes.clone());
        let (done, mut came) = mpsc::channel(PIECES_WAITING);
        let download = async {
            let report = downloader.run(items, &self.errand.sources, done).await.map_err(|e| e.to_string())?;
            swarm::count_update(&report);
            self.net.fetched().updates(&report);
            Ok::<_, String>(())
        };
        let keeping = async {
            while let Some((piece, bytes)) = came.recv().await {
                self.count(bytes.len(), progress);
                arriving.put(piece, &bytes);
            }
            Ok::<_, String>(())
        };
        tokio::try_join!(download, keeping)?;
        let bytes = arriving.whole().ok_or("a piece is missing")?;
        // The process would have to end if the ledger got an update with another digest than its record's.
        let checked = Arc::clone(&bytes);
        let whole = tokio::task::spawn_blocking(move || update::digest(&checked)).await.map_err(|e| e.to_string())?;
        if whole != digest {
            return Err("its pieces are good, and together they have another digest".into());
        }
        Ok(Some(Fetched::in_pieces(bytes, arriving)))
    }

    /// The values of the pieces of a record's update, which has so many bytes. A source is believed when they lead to
    /// the digest.
    async fn pieces_of(&self, record: &Record, length: u64) -> Result<Pieces, String> {
        let ask = async |source: NodeId, begun: Begun| {
            let request = FetchRequest::UpdatePieces(record.update);
            let expected = Expect::Exactly(Pieces::encoded_len(length));
            let answer = self.net.fetch_telling(source, request, expected, || begun.tell(), |_| ()).await;
            let values = answer.map_err(|e| e.to_string())?;
            Pieces::decode(&record.update, length, &values)
                .ok_or_else(|| "the values of its pieces do not lead to the digest in the record".to_owned())
        };
        self.sources.first(ask).await
    }
}
