//! Processes and connections that come and go, and the faults of the schedule.

use super::disk::{Disk, Link};
use super::invariant::Observed;
use super::process::Ambush;
use super::schedule::{Fault, Planned};
use super::sleep::PROBE;
use super::world::{Event, World};
use super::{MS, SECOND};
use crate::NodeId;
use crate::engine::PAST_MAX;
use crate::engine::io::{Input, Notice, Refusal};
use crate::message::{Message, Stamp, Vote};
use crate::record::{Member, Record, RecordKind, Role};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Snapshots of a disk that are kept, one at intervals.
const SNAPSHOTS: usize = 12;
/// The time after an old disk is back in which nothing else goes wrong, so that its node can be told.
const QUIET: u64 = 8 * SECOND;

impl World {
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].alive() || self.nodes[node].gone {
            return;
        }
        // The first node founds as long as there is nothing to join; further founders do not look for a flock.
        let nothing = node > 0 || self.nodes.iter().all(|n| n.disk.chain.is_empty());
        let found = node < self.options.founders && nothing && self.nodes[node].disk.chain.is_empty();
        if self.nodes[node].disk.vote_state.is_some() {
            self.marks.hit("restart with a vote state");
        }
        if !self.nodes[node].disk.evidence.is_empty() {
            self.marks.hit("evidence after a restart");
        }
        let spec = self.spec.clone();
        let ticket = self.gate.ticket(node);
        self.nodes[node].start(node, &self.keys, &spec, (found, ticket));
        self.nodes[node].started_at = self.now;
        self.note(|| Some(format!("n{node} starts")));
        self.observe(&Observed::Started { node });
        if self.options.probed {
            let phase = self.random.between(0, PROBE);
            self.schedule_own(phase, node, Event::Probe);
        }
        self.feed(node, Input::Tick);
        self.tell_difference(node);
        self.amend_again(node);
    }

    pub(super) fn dial(&mut self, a: usize, b: usize) {
        if self.options.steady && self.network.connected(a, b) {
            return;
        }
        let again = self.random.between(200, 700) * MS;
        self.schedule(again, a, 0, Event::Dial { other: b });
        if !self.nodes[a].alive() || !self.nodes[b].alive() {
            return;
        }
        if !self.wanted(a, b) {
            if self.network.connected(a, b) {
                self.disconnect(a, b);
            }
            return;
        }
        let Some(conn) = self.network.connect(a, b, self.now) else { return };
        for (at, other) in [(a, b), (b, a)] {
            let after = self.random.between(0, 50 * MS);
            self.schedule(after, at, 0, Event::Up { other, conn });
        }
    }

    /// Whether one of two nodes is to be connected with the other.
    fn wanted(&self, a: usize, b: usize) -> bool {
        let wants = |of: usize, other: usize| {
            let other = self.keys.id(other);
            self.nodes[of].process.as_ref().is_none_or(|process| process.engine.is_contact(&other))
        };
        wants(a, b) || wants(b, a)
    }

    /// Tells a node of a connection, once.
    pub(super) fn up(&mut self, node: usize, other: usize, conn: u64) {
        if !self.network.is(node, other, conn) || self.network.believes(node, other) {
            return;
        }
        let peer = self.keys.id(other);
        if self.network.learn_up(node, other, conn) {
            self.feed(node, Input::PeerDown { peer });
        }
        self.feed(node, Input::PeerUp { peer });
        let micros = self.network.round_trip(node, other) as u32;
        self.feed(node, Input::Rtt { peer, micros });
        if self.options.replays && !self.calm && self.random.chance(40) {
            self.replay(other, node);
        }
    }

    /// A lying network repeats bytes of earlier connections, except greetings: an authenticated transport authenticates
    /// the first bytes of a connection.
    fn replay(&mut self, from: usize, to: usize) {
        let count = self.random.between(1, 6);
        for _ in 0..count {
            let old = self.network.old(from, to, &mut self.random);
            if let Some(bytes) = old.filter(|bytes| super::network::kind(bytes) != "hello") {
                self.marks.hit("old bytes replayed");
                let after = self.random.between(0, 500 * MS);
                let conn = self.network.id(from, to);
                self.schedule(after, to, 0, Event::Deliver { from, conn, bytes });
            }
        }
    }

    /// Kills the process at once; writes under way may or may not have arrived on the disk.
    pub(super) fn crash(&mut self, node: usize, silent: bool) {
        let Some(process) = self.nodes[node].process.take() else { return };
        self.note(|| Some(format!("n{node} dies, silently: {silent}")));
        self.mark_lost(&process);
        let mut whole = true;
        for (_, write) in process.writes {
            // Writes arrive in order. The first that is lost or torn is the end, as its checksum shows.
            whole = whole && self.random.chance(50);
            if whole {
                self.store(node, write);
            } else {
                self.marks.hit("write torn at a crash");
                break;
            }
        }
        self.observe(&Observed::Crashed { node });
        self.nodes[node].paused_until = 0;
        self.network.forget(node);
        for other in self.network.neighbours(node) {
            if let Some(conn) = self.network.close(node, other) {
                let after = if silent { self.random.between(5, 30) * SECOND } else { self.random.between(0, 200 * MS) };
                self.schedule(after, other, 0, Event::Down { other: node, conn });
            }
        }
        let spare = self.random.chance(50);
        self.break_reductions(node, |_, _| true, spare, silent);
    }

    fn mark_lost(&mut self, process: &super::process::Process) {
        let commits = process.writes.iter().any(|(_, write)| matches!(write, super::disk::Write::Commit { .. }));
        if commits {
            self.marks.hit("crash between commit and persist");
        } else if !process.writes.is_empty() {
            self.marks.hit("crash between vote and persist");
        }
        if process.reducing.is_some() {
            self.marks.hit("death in a reduction");
        }
    }

    /// Breaks the connection between two nodes.
    pub(super) fn disconnect(&mut self, a: usize, b: usize) {
        let Some(conn) = self.network.close(a, b) else { return };
        for (at, other) in [(a, b), (b, a)] {
            let after = self.random.between(0, 200 * MS);
            self.schedule(after, at, 0, Event::Down { other, conn });
        }
        self.break_reductions(a, |_, members| members.contains(&b), true, false);
    }

    /// Blocks messages from `a` to `b`: the connection ends after a while, whatever happens to the link.
    pub(super) fn block(&mut self, a: usize, b: usize, until: u64) {
        if let Some(conn) = self.network.block(a, b, until) {
            let after = self.random.between(SECOND, 15 * SECOND);
            self.schedule(after, a, 0, Event::Sever { other: b, conn });
        }
    }

    pub(super) fn sever(&mut self, a: usize, b: usize, conn: u64) {
        if self.network.is(a, b, conn) {
            self.disconnect(a, b);
        }
    }

    /// Carries out one fault of the schedule, if it can happen.
    pub(super) fn strike(&mut self, index: usize) {
        self.take_snapshots();
        let quiet = self.calm || self.now < self.quiet_until;
        let Some(Planned { fault, .. }) = self.schedule.get(index).copied().filter(|_| !quiet) else { return };
        self.note(|| Some(format!("fault {index}: {fault:?}")));
        let count = self.nodes.len() as u64;
        let place = |number: u64| (number % count) as usize;
        let two = |a: u64, b: u64| (place(a), (place(a) + 1 + (b % (count - 1).max(1)) as usize) % count as usize);
        let until = |lasts: u64| self.now + lasts;
        match fault {
            Fault::Crash { node, silent, back } => self.crash_and_return(place(node), silent, back),
            Fault::Blackout { spread, back } => {
                self.marks.hit("all crashed at once");
                for node in 0..self.nodes.len() {
                    let (after, back) = (self.random.between(0, spread), self.random.between(back / 2, back * 2));
                    self.schedule_own(after, node, Event::Exit);
                    self.schedule(after + back, node, 0, Event::Start);
                }
            }
            Fault::Wipe { node, back } => self.lose_disk(place(node), None, back),
            Fault::OldDisk { node, age, back, noticed: false } => self.lose_disk(place(node), Some(age), back),
            Fault::OldDisk { node, age, back, .. } => self.restore_copy(place(node), age, back),
            Fault::SlowDisk { node, lasts } => self.nodes[place(node)].slow_disk_until = until(lasts),
            Fault::Pause { node, lasts } => {
                self.marks.hit("process paused");
                self.nodes[place(node)].paused_until = until(lasts);
            }
            Fault::ClockJump { node, by } => {
                self.marks.hit("clock jumped");
                self.nodes[place(node)].offset += by;
                self.arm(place(node));
            }
            Fault::ClockBack { node, starts, wipes, back } => self.set_clock_back(place(node), starts, wipes, back),
            Fault::Drop { a, b } => {
                let (a, b) = two(a, b);
                self.disconnect(a, b);
            }
            Fault::Partition { sides, lasts } => self.partition(sides, until(lasts)),
            Fault::OneWay { a, b, lasts } => {
                let (a, b) = two(a, b);
                self.marks.hit("one-way partition");
                self.block(a, b, until(lasts));
            }
            Fault::NonTransitive { a, b, lasts } => {
                let (a, b) = two(a, b);
                self.marks.hit("non-transitive partition");
                let until = until(lasts);
                self.block(a, b, until);
                self.block(b, a, until);
            }
            Fault::Clog { a, b, lasts } => {
                let ((a, b), until) = (two(a, b), until(lasts));
                self.marks.hit("clogged link");
                self.network.clog(a, b, until);
            }
            Fault::Hang { node } => self.process(place(node), |process| process.hung = true),
            Fault::Damage { node } => self.damage(place(node)),
            Fault::Leave { node, back } => self.leave(place(node), back),
            Fault::Revoke { node, whom, ticket } => self.revoke(place(node), place(whom), ticket),
            Fault::Amend { node, choice, late } => self.amend(place(node), choice, late),
            Fault::Contest { node, contest } => self.nodes[place(node)].contest = Some(contest),
            Fault::Ambush { node, moment, forgets, back } => {
                self.nodes[place(node)].ambush = Some(Ambush { moment, forgets, back });
            }
        }
    }

    /// Damages one node at a time: two that are damaged alike could outvote the others.
    fn damage(&mut self, node: usize) {
        let damaged = |n: &super::process::Node| n.process.as_ref().is_some_and(|process| process.damaged);
        if !self.nodes.iter().any(damaged) {
            self.process(node, |process| {
                process.state = process.state.damaged();
                process.damaged = true;
            });
        }
    }

    pub(super) fn crash_and_return(&mut self, node: usize, silent: bool, back: u64) {
        self.crash(node, silent);
        self.schedule(back, node, 0, Event::Start);
    }

    /// The node comes back with an empty disk, or with the disk's content of so long ago. The last disk with the
    /// flock's records is spared: no other one would remember it.
    pub(super) fn lose_disk(&mut self, node: usize, age: Option<u64>, back: u64) {
        let others = self.nodes.iter().enumerate().filter(|(other, n)| *other != node && !n.disk.chain.is_empty());
        let then = self.now.saturating_sub(age.unwrap_or(0));
        let old = self.nodes[node].snapshots.iter().rev().find(|(at, _)| age.is_some() && *at <= then).cloned();
        // A voter that decides alone asks nobody before it votes.
        let asks = |disk: &Disk| disk.head().is_some_and(|head| head.record.voters().count() > 1);
        let known = |(since, disk): &(u64, Disk)| {
            asks(disk)
                && asks(&self.nodes[node].disk)
                && (self.remembered(node, *since, disk) || self.certified(node, disk))
        };
        if others.count() == 0 || old.as_ref().is_some_and(|old| !known(old)) {
            return;
        }
        if old.as_ref().is_some_and(|(since, disk)| !self.remembered(node, *since, disk)) {
            self.marks.hit("old disk known by certificates only");
        }
        let old = old.map_or_else(Disk::default, |(_, disk)| disk);
        self.marks.hit(if old.chain.is_empty() { "wiped disk" } else { "old disk" });
        self.exchange_disk(node, old, back);
    }

    /// The node comes back with a copy of its disk of so long ago, which its program recognises as a copy. Whatever
    /// others remember, it speaks under a new name, so nothing that it says can contradict its earlier statements.
    fn restore_copy(&mut self, node: usize, age: u64, back: u64) {
        let then = self.now.saturating_sub(age);
        let old = self.nodes[node].snapshots.iter().rev().find(|(at, _)| *at <= then).map(|(_, disk)| disk.clone());
        let Some(disk) = old.filter(|disk| disk.head().is_some() && disk.vote_state.is_some()) else { return };
        self.marks.hit("copied disk");
        self.crash(node, false);
        self.nodes[node].disk = disk;
        (self.nodes[node].amnesic, self.nodes[node].copied) = (true, true);
        self.schedule(back, node, 0, Event::Start);
    }

    /// The process dies, and comes back with another disk.
    pub(super) fn exchange_disk(&mut self, node: usize, disk: Disk, back: u64) {
        self.crash(node, false);
        if !disk.chain.is_empty() {
            self.quiet_until = self.now + back + QUIET;
        }
        self.nodes[node].disk = disk;
        (self.nodes[node].amnesic, self.nodes[node].copied) = (true, false);
        self.observe(&Observed::LostDisk { node });
        self.schedule(back, node, 0, Event::Start);
    }

    /// Whether all other nodes have run since then, and can tell: they remember only in memory what they have seen a
    /// node sign. An old disk that nobody can tell from a new one is beyond what is promised.
    pub(super) fn remembered(&self, node: usize, since: u64, old: &Disk) -> bool {
        // A voter that decides alone may have told nobody.
        let many = |disk: &Disk| disk.head().is_some_and(|head| head.record.voters().count() > 1);
        if !many(old) || !many(&self.nodes[node].disk) {
            return false;
        }
        let there = |other: usize| {
            let machine = &self.nodes[other];
            machine.working() && machine.started_at <= since && machine.paused_until <= self.now
        };
        let others = (0..self.nodes.len()).filter(|other| *other != node);
        others.clone().all(there) && others.clone().all(|other| self.network.open(node, other, self.now))
    }

    /// Whether every other disk has, among its newest certificates, a vote of this node that the old disk does not know
    /// of. The process on that disk may have started after the vote.
    fn certified(&self, node: usize, old: &Disk) -> bool {
        let Some(vote_state) = &old.vote_state else { return false };
        let newer = |bytes: &Vec<u8>| {
            let Some(opened) = self.open(bytes).filter(|opened| opened.sender == self.nodes[node].id) else {
                return false;
            };
            let Message::Vote(Vote { question, incarnation, ballot, .. }) = opened.message else { return false };
            let stamp = Stamp { seq: question.seq, instance: question.instance, ballot, phase: 2 };
            incarnation == vote_state.incarnation && stamp > vote_state.stamp
        };
        let shows = |disk: &Disk| {
            let head = disk.head().and_then(|head| head.certificate.as_deref());
            let mut newest = head.into_iter().chain(disk.past_certificates().take(PAST_MAX));
            newest.any(|certificate| certificate.votes.iter().any(newer))
        };
        let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        others.all(|(_, machine)| shows(&machine.disk))
    }

    fn take_snapshots(&mut self) {
        if !self.options.old_disks {
            return;
        }
        let now = self.now;
        for node in &mut self.nodes {
            node.snapshots.push_back((now, node.disk.clone()));
            if node.snapshots.len() > SNAPSHOTS {
                node.snapshots.pop_front();
            }
        }
    }

    pub(super) fn partition(&mut self, sides: u64, until: u64) {
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if (sides >> (a % 64) ^ sides >> (b % 64)) & 1 == 1 {
                    self.block(a, b, until);
                }
            }
        }
    }

    fn leave(&mut self, node: usize, back: u64) {
        if self.nodes[node].working() {
            self.feed(node, Input::Leave);
            self.schedule(back + 8 * SECOND, node, 0, Event::Start);
        }
    }

    pub(super) fn mark_not_admitted(&mut self, why: &str) {
        let marks = [
            ("not_listed", "refused: not listed"),
            ("no_ticket", "refused: no ticket"),
            ("bad_signature", "refused: forged ticket"),
            ("expired", "refused: expired ticket"),
            ("used_up", "refused: ticket used up"),
            ("revoked_identity", "refused: revoked identity"),
            ("revoked_ticket", "refused: revoked ticket"),
        ];
        if let Some((_, mark)) = marks.iter().find(|(reason, _)| *reason == why) {
            self.marks.hit(mark);
        }
    }

    pub(super) fn mark_notice(&mut self, notice: &Notice) {
        let mark = match notice {
            Notice::Committed { .. } => "round committed",
            Notice::Skipped { .. } => "skip committed",
            Notice::Forked { .. } => "fork",
            Notice::MemberJoined { .. } => "member joined",
            Notice::MemberLeft { .. } => "member left",
            Notice::QuorumLost { .. } => "partition without a quorum",
            Notice::Amended { .. } => "run amended",
            Notice::Waited { .. } => "a round waited for newcomers",
            Notice::Rejoined => "quorum back in reach",
            Notice::NewIncarnation { .. } => "new incarnation",
            Notice::OwnFault { .. } => "damaged state found",
            Notice::Refused { refusal: Refusal::Stale, .. } => "stale message ignored",
            Notice::SplitBrain { ours, theirs } => {
                let why = format!("two certificates at seq {}: {:?} and {:?}", ours.seq, ours.record, theirs.record);
                return self.violate("S2 no fork", why);
            }
            _ => return,
        };
        self.marks.hit(mark);
    }

    /// Marks that a record is decided for the first time.
    pub(super) fn mark_decision(&mut self, node: usize, link: &Link) {
        let Some(parent) = self.nodes[node].disk.head().map(|head| Rc::clone(&head.record)) else { return };
        let (record, voters) = (&link.record, parent.voters().count());
        let votes = link.certificate.as_deref().map_or(0, |certificate| certificate.votes.len());
        if 2 * votes == voters && record.kind != RecordKind::Fork {
            self.marks.hit("distinguished half went on");
        }
        if record.kind == RecordKind::Commit && record.merged.len() > parent.merged.len() {
            self.marks.hit("merged");
        }
        let liar = |id: &NodeId| self.keys.index(id).is_some_and(|node| self.nodes[node].liar.is_some());
        if record.revoked.iter().any(|id| liar(&NodeId(id.0)) && parent.revoked.binary_search(id).is_err()) {
            self.marks.hit("liar revoked");
        }
        if record.grants != parent.grants && record.kind == RecordKind::Commit {
            self.marks.hit("member joined by a limited ticket");
        }
        for member in &parent.next.members {
            match record.member(&member.id) {
                None if record.kind == RecordKind::Commit => self.marks.hit("member removed"),
                Some(now) if now.role == Role::Voter && member.role == Role::Learner => {
                    self.marks.hit("learner became voter");
                }
                _ => {}
            }
        }
        if self.options.probation > 0 {
            self.mark_probation(&parent, record);
        }
    }

    fn mark_probation(&mut self, parent: &Record, record: &Record) {
        let same =
            |member: &Member| parent.member(&member.id).filter(|before| before.incarnation == member.incarnation);
        let kept = record.voters().filter_map(same).any(|before| before.role == Role::Voter);
        for member in &record.next.members {
            match same(member).map(|before| (before.role, member.role)) {
                Some((Role::Learner, Role::Voter)) if kept => self.marks.hit("probation over"),
                Some((Role::Voter, Role::Learner)) => self.marks.hit("newcomer set back"),
                _ => {}
            }
        }
        if !kept && record.next.members.len() > record.voters().count() {
            self.marks.hit("elders decide");
        }
    }

    /// Nodes whose program runs and has not ended by itself.
    pub fn running(&self) -> BTreeSet<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].working()).collect()
    }
}
