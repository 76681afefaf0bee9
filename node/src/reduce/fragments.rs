//! Error feedback of a run whose fragments take turns: each fragment has its own residuals, which wait for its next
//! turn, and its own files.

use super::Feedback;
use super::feedback::disk::file::{Label, PREFIX};
use super::feedback::disk::{Disk, lost};
use super::passed::{Passed, last_taken};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::run::Codec;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId};
use starling_store::{Store, StoreError};
use std::sync::Arc;

/// The residuals of all fragments.
pub struct FragmentFeedback {
    fragments: Fragments,
    of: Vec<Arc<Feedback>>,
}

/// The residuals that a start found on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Restored {
    /// Fragments that go on with residuals from the disk.
    pub kept: usize,
    /// Fragments with a file, none of which is true.
    pub lost: usize,
    /// Euclidean norm of all kept residuals.
    pub norm: f64,
}

impl FragmentFeedback {
    /// Loads the residuals of each fragment for `me`, if they are true after the store's record `head`; other fragments
    /// begin with zeros, as on a new node.
    pub fn restore(store: &Arc<Store>, me: &NodeId, head: u64, fragments: Fragments) -> (Self, Restored) {
        let run = store.run().map_or(Digest::default(), |run| run.digest);
        let of_fragment = |fragment: usize| {
            let elements = fragments.range(fragment).len();
            let label = Label { run, node: *me, fragment, fragments: fragments.count(), elements };
            Disk::open(Arc::clone(store), label)
        };
        remove_strays(store, fragments.count());
        let disks: Vec<(Disk, bool)> = (0..fragments.count()).map(of_fragment).collect();
        let marks = if disks.iter().all(|(disk, _)| disk.is_empty()) {
            Ok(Vec::new())
        } else {
            last_taken(store, me, head, &fragments)
        };
        let marks = marks.unwrap_or_else(|error| {
            tracing::warn!("the records cannot be read to see which residuals are true: {error}");
            Vec::new()
        });
        let (mut restored, mut squares) = (Restored::default(), 0.0);
        let of = disks.into_iter().enumerate().map(|(fragment, (disk, found))| {
            let mark = marks.get(fragment).copied().flatten().filter(|mark| disk.has(mark));
            if mark.is_none() && !disk.is_empty() {
                lost("old", &format!("no file of fragment {fragment} is true after record {head}"));
            }
            let feedback = Feedback::restore(disk, mark.as_ref());
            if feedback.is_kept() {
                (restored.kept, squares) = (restored.kept + 1, squares + feedback.squares());
            } else if found {
                restored.lost += 1;
            }
            Arc::new(feedback)
        });
        let of = of.collect();
        (Self { fragments, of }, Restored { norm: squares.sqrt(), ..restored })
    }

    /// The L2 norm that the READY of a round states: that of the contribution with what earlier ones left out, for
    /// codecs that leave anything out ([`Feedback::offered_norm`]).
    pub fn offered_norm(&self, codec: Codec, round: u64, delta: &[f32]) -> Option<f32> {
        let norm = self.of_round(round).offered_norm(codec, delta)?;
        Some(norm.min(f64::from(f32::MAX)) as f32)
    }

    /// The residuals of the fragment whose turn this round is.
    pub fn of_round(&self, round: u64) -> Arc<Feedback> {
        Arc::clone(&self.of[self.fragments.turn(round)])
    }

    /// The lineage has passed a record ([`Feedback::pass`]).
    pub fn pass(&self, passed: &Passed) {
        let stepped = passed.taken.map(|round| self.fragments.turn(round));
        for (index, feedback) in self.of.iter().enumerate() {
            feedback.pass(passed.mark, stepped == Some(index));
            feedback.keep_for(passed.codec);
        }
    }

    /// Settles all residuals with the last committed record.
    pub fn settle(&self) {
        self.of.iter().for_each(|feedback| feedback.settle());
    }

    /// Writes the residuals as they will be if this attempt is committed ([`Feedback::stage`]).
    pub fn stage(&self, key: &AttemptKey) {
        self.of.iter().for_each(|feedback| feedback.stage(key));
    }

    /// Settles, and writes the present residuals that are not on the disk yet ([`Feedback::keep`]).
    pub fn keep(&self) {
        self.of.iter().for_each(|feedback| feedback.keep());
    }

    /// Gives the residuals up: the lineage goes on from a state that no records known to this node lead to.
    ///
    /// # Errors
    /// The files cannot be removed.
    pub fn forget(&self) -> Result<(), StoreError> {
        self.of.iter().try_for_each(|feedback| feedback.forget())
    }
}

/// Removes residuals with names outside this layout: those of earlier programs, or of more fragments.
fn remove_strays(store: &Store, fragments: usize) {
    let names = store.private_names().unwrap_or_else(|error| {
        tracing::warn!("private state cannot be listed: {error}");
        Vec::new()
    });
    let ours = |name: &String| {
        let mut parts = name.strip_prefix(PREFIX).unwrap_or_default().split('-').skip(1);
        let fragment = parts.next().and_then(|digits| digits.parse().ok()).is_some_and(|n: usize| n < fragments);
        fragment && matches!(parts.next(), Some("a" | "b")) && parts.next().is_none()
    };
    for name in names.iter().filter(|name| name.starts_with(PREFIX) && !ours(name)) {
        lost("layout", &format!("{name} is none of the files of a run with {fragments} fragments"));
        if let Err(error) = store.remove_private(name) {
            tracing::warn!("{name} cannot be removed: {error}");
        }
    }
}
