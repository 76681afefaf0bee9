//! When time alone changes something.

use super::clock::Moment;
use super::round::Training;
use super::view::Scene;
use crate::plant::{Plant, planted};

/// Between two looks at a vote in which this node has said something.
const VOTE: u64 = 100_000;

/// The next of all deadlines; `beat`: when the next heartbeat is due.
pub(super) fn next(scene: &Scene<'_>, beat: Moment) -> Moment {
    all(scene).into_iter().filter(|at| !at.passed(scene.ctx.now)).fold(beat, Moment::min)
}

fn all(scene: &Scene<'_>) -> Vec<Moment> {
    let ctx = scene.ctx;
    let mut all = vec![scene.catch_up.not_before];
    if !planted!(Plant::SleepOn) {
        all.extend(ctx.peers.values().map(|peer| peer.avoid_until));
    }
    let Some(round) = scene.round else { return all };
    let down = ctx.peers.iter().filter(|(id, peer)| !peer.connected && round.task.members.binary_search(id).is_ok());
    all.extend(down.map(|(_, peer)| peer.switched_at.plus(ctx.down_grace(round))));
    all.extend([&round.set_vote, &round.record_vote].map(|vote| vote.said_at.plus(VOTE)));
    all.extend(round.cut.due_at(ctx.fork_grace()));
    all.extend(round.results.fetching.values().map(|fetching| fetching.not_before));
    all.extend(ctx.waits_for_witnesses());
    all.push(round.attempts.not_before);
    all.extend((round.part.training == Training::Due).then(|| round.began.plus(ctx.timing.settle)));
    all.extend(ctx.assembly_deadlines(round));
    all
}
