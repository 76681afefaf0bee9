//! The task that owns the swarm.

use super::acquaintances::Acquaintances;
use super::announce::Newest;
use super::beacon::Beacon;
use super::contacts::Partings;
use super::event::NetEvent;
use super::fetch::{FetchServer, ServerPatience};
use super::handle::{COMMANDS_CAP, Command, NetHandle, NetStatus};
use super::inbound::{self, BULK_CAP, BulkBooks, CONTROL_CAP, FETCH_CAP};
use super::names::PeerNames;
use super::options::{NetError, NetOptions};
use super::peers::{PeerTable, Step};
use super::queue::{self, NetEvents};
use super::reason::refused;
use super::sessions::{Ended, Fault, Guests, Role, SessionOffice, Sessions};
use super::standing::{Rank, Standing};
use super::traffic::Traffic;
use super::unreached::Unreached;
use super::{BULK_PROTOCOL, CONTROL_PROTOCOL, FETCH_PROTOCOL, PAIR_PROTOCOL};
use futures::StreamExt;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Stream, Swarm, identify};
use starling_bootstrap::discovery::{Discovery, NetEvent as Found, Origin};
use starling_bootstrap::identity::{self, Identity};
use starling_bootstrap::process::Process;
use starling_bootstrap::source::Source;
use starling_bootstrap::streams::{self, Incoming, IncomingStreams};
use starling_bootstrap::swarm::{self, Behaviour, BehaviourEvent, SwarmOptions};
use starling_bootstrap::uplink::Uplink;
use starling_protocol::NodeId;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

mod announcing;
mod telling;

/// Ended sessions that the swarm's task has not looked at yet. Sessions wait when the queue is full.
const ENDED_CAP: usize = 128;
/// The time for which a refused peer is left alone.
const REFUSAL: Duration = Duration::from_secs(60);
/// The longest wait of a shutdown for queued messages to be written.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Starts networks.
pub struct Network;

impl Network {
    /// Starts listening, looking for peers, and serving what the options' source has. Must be called inside a tokio runtime. The
    /// network ends with [`NetHandle::shutdown`], or when the receiver is dropped and all sessions have ended.
    ///
    /// # Errors
    /// [`NetError`], in words for the user: a port in use, an address that is not this machine's.
    pub fn start(identity: &Identity, options: NetOptions) -> Result<(NetHandle, NetEvents), NetError> {
        let process = Some(Process(rand::random::<u64>().max(1)));
        let uplink = Uplink::default();
        let mut swarm = swarm::build(identity, &SwarmOptions { process, uplink: uplink.clone(), ..options.swarm() })?;
        let discovery = Discovery::new(&mut swarm, options.discovery(jitter_seed(identity)));
        let streams = swarm.behaviour().streams.control();
        let control = streams.accept(CONTROL_PROTOCOL, CONTROL_CAP)?;
        let bulk = streams.accept(BULK_PROTOCOL, BULK_CAP)?;
        let pair = streams.accept(PAIR_PROTOCOL, BULK_CAP)?;
        let fetch = streams.accept(FETCH_PROTOCOL, FETCH_CAP)?;

        let standing = Standing::default();
        for named in options.bootstrap.iter().filter_map(|named| identity::node_id(&named.peer)) {
            standing.name(named);
        }
        let (teller, received) = queue::queue(standing.clone());
        let ((commands, orders), (ended, endings)) = (mpsc::channel(COMMANDS_CAP), mpsc::channel(ENDED_CAP));
        let (sessions, guests, traffic) = (Sessions::default(), Guests::default(), Traffic::default());
        let names = PeerNames::default();
        let books = BulkBooks::new(standing.clone());
        for (streams, books, told) in [
            (bulk, books.another_kind(), (|from, stream| NetEvent::Bulk { from, stream }) as fn(_, _) -> _),
            (pair, books, |from, stream| NetEvent::Pair { from, stream }),
        ] {
            let office = (teller.clone(), books);
            tokio::spawn(inbound::take_bulk(streams, sessions.clone(), traffic.clone(), office, told));
        }
        let server = FetchServer::new(options.source, ServerPatience::default(), standing.clone());
        tokio::spawn(inbound::take_fetch(fetch, server, traffic.clone()));

        let me = identity.node_id();
        let (addresses, told) = watch::channel(Vec::new());
        let unreached = Unreached::default();
        let handle = NetHandle {
            me,
            commands,
            streams: streams.clone(),
            sessions: sessions.clone(),
            guests: guests.clone(),
            traffic: traffic.clone(),
            uplink,
            standing: standing.clone(),
            fetched: Default::default(),
            names: names.clone(),
            unreached: unreached.clone(),
            addresses: told,
        };
        let task = SwarmTask {
            swarm,
            discovery,
            table: PeerTable::new(me),
            office: SessionOffice {
                streams,
                sessions,
                guests,
                traffic,
                teller,
                standing,
                verify: options.verify,
                ended,
            },
            acquaintances: Acquaintances::default(),
            partings: Partings::default(),
            newest: Newest::default(),
            beacon: Beacon::new(Instant::now()),
            names,
            addresses,
            unreached,
        };
        tokio::spawn(task.run(orders, endings, control));
        Ok((handle, received))
    }
}

/// A seed that differs between nodes and between starts.
fn jitter_seed(identity: &Identity) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = identity.node_id().0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ u64::from(std::process::id())
}

struct SwarmTask {
    swarm: Swarm<Behaviour>,
    discovery: Discovery,
    table: PeerTable<Stream>,
    office: SessionOffice,
    acquaintances: Acquaintances,
    partings: Partings,
    newest: Newest,
    beacon: Beacon,
    names: PeerNames,
    addresses: watch::Sender<Vec<Multiaddr>>,
    unreached: Unreached,
}

impl SwarmTask {
    async fn run(
        mut self,
        mut orders: mpsc::Receiver<Command>,
        mut endings: mpsc::Receiver<Ended>,
        mut control: IncomingStreams,
    ) {
        self.discovery.tick(&mut self.swarm);
        let standing = self.office.standing.clone();
        loop {
            let wake = self.wake_at();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Command::Shutdown(done)) => return self.shut_down(endings, Some(done)).await,
                    Some(order) => self.obey(order),
                    // Every handle is gone, so nobody can use the network any more.
                    None => return self.shut_down(endings, None).await,
                },
                Some(end) = endings.recv() => self.on_session_end(&end),
                Some(incoming) = control.next() => self.on_control_stream(incoming),
                () = standing.changed() => self.on_standing(),
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                () = sleep_until(wake) => self.on_wake(),
            }
        }
    }

    fn wake_at(&self) -> Instant {
        let others = [self.discovery.wake_at(), self.table.wake_at(), self.partings.wake_at()];
        others.into_iter().flatten().chain([self.beacon.wake_at()]).min().unwrap_or_else(Instant::now)
    }

    fn on_wake(&mut self) {
        self.discovery.tick(&mut self.swarm);
        for step in self.table.due(Instant::now()) {
            self.take(Some(step));
        }
        // The loop comes here at least as often as the beacon is due.
        for node in self.acquaintances.overdue(Instant::now()) {
            self.discovery.unwant(&mut self.swarm, identity::peer_id(&node));
        }
        for node in self.partings.overdue(Instant::now()) {
            metrics::counter!("starling_partings_total").increment(1);
            self.discovery.disconnect(&mut self.swarm, identity::peer_id(&node));
        }
        if self.beacon.is_due(Instant::now()) {
            self.announce();
        }
    }

    /// Starts the session that the table asks for.
    fn take(&mut self, step: Option<Step<Stream>>) {
        let office = self.office.clone();
        match step {
            None => {}
            Some(Step::Open(task)) => drop(tokio::spawn(office.run(task, Role::Open))),
            Some(Step::Answer(task, stream)) => drop(tokio::spawn(office.run(task, Role::Answer(stream)))),
            Some(Step::Hear(task, stream)) => drop(tokio::spawn(office.hear(task, stream))),
        }
    }

    fn on_session_end(&mut self, end: &Ended) {
        if let Some(process) = end.shut {
            self.swarm.behaviour_mut().streams.close(&identity::peer_id(&end.peer), process);
        }
        if let Some(fault) = end.fault {
            if fault == Fault::Flood {
                self.discovery.doors().rest(self.office.standing.source(&end.peer), Instant::now());
            }
            self.leave_alone(&end.peer);
        }
        let step = self.table.ended(&end.peer, end.serial, end.was_up, Instant::now());
        let id = identity::peer_id(&end.peer);
        if self.discovery.excludes(&id) {
            // The peer was refused, and has been sent its queued messages.
            self.discovery.disconnect(&mut self.swarm, id);
        } else {
            self.take(step);
        }
    }

    fn on_control_stream(&mut self, Incoming { peer, process, stream }: Incoming) {
        let Some(node) = inbound::sender(&peer) else { return };
        match self.table.incoming(&node, process, stream) {
            Ok(step) => self.take(step),
            Err(reason) => refused(reason),
        }
    }

    fn obey(&mut self, order: Command) {
        match order {
            Command::Connect(peer) => {
                if let Some(named) = identity::node_id(&peer.peer) {
                    self.office.standing.name(named);
                }
                self.discovery.want_address(&mut self.swarm, &peer, Origin::Ticket);
                self.discovery.tick(&mut self.swarm);
            }
            Command::Refuse(peer) => {
                self.leave_alone(&peer);
                let id = identity::peer_id(&peer);
                if !self.table.has_session(&peer) {
                    self.discovery.disconnect(&mut self.swarm, id);
                }
            }
            Command::Admit(peer) => {
                if let Some(process) = self.table.admit(&peer) {
                    self.swarm.behaviour_mut().streams.close(&identity::peer_id(&peer), process);
                }
            }
            Command::Status(reply) => {
                let status = NetStatus {
                    peers: self.table.status(|node| self.office.sessions.is_up(node)),
                    troubles: self.discovery.troubles(),
                    members: self.discovery.ways_to(&self.swarm, self.office.standing.peer_ids()),
                };
                // The asker may have given up.
                drop(reply.send(status));
            }
            // The loop handles it.
            Command::Shutdown(done) => drop(done),
        }
    }

    /// Stops looking for the peer for a while.
    fn leave_alone(&mut self, peer: &NodeId) {
        self.acquaintances.drop(peer);
        let id = identity::peer_id(peer);
        self.discovery.unwant(&mut self.swarm, id);
        self.discovery.exclude(&mut self.swarm, id, REFUSAL);
    }

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        if let SwarmEvent::Behaviour(BehaviourEvent::Streams(event)) = &event {
            self.on_process(*event);
        }
        // Read before discovery takes the event: whether the peer is a node.
        let speaks = match &event {
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { info, .. })) => {
                info.protocols.contains(&CONTROL_PROTOCOL)
            }
            _ => false,
        };
        match self.discovery.on_event(&mut self.swarm, event) {
            Some(Found::Connected { peer, address, punched, .. }) => {
                if let Some(node) = identity::node_id(&peer) {
                    self.office.standing.came(node, Source::of(&address));
                    self.unreached.reached(&node);
                    self.table.connected(node, address);
                    if punched {
                        self.tell_user(NetEvent::HolePunched { peer: node });
                    }
                }
            }
            Some(Found::Disconnected { peer, last: true, why, .. }) => {
                if let Some(node) = identity::node_id(&peer) {
                    let source = self.office.standing.source(&node);
                    self.office.standing.left(&node);
                    self.names.left(&node);
                    self.acquaintances.left(&node, source, Instant::now());
                    self.partings.drop(&node);
                    self.table.disconnected(&node, why);
                }
            }
            Some(Found::Identified { peer, agent, name }) => self.on_identified(peer, (agent, name), speaks),
            Some(Found::RoundTrip { peer, time }) => {
                let node = identity::node_id(&peer);
                if let Some(node) = node.filter(|node| self.table.round_trip(node, time, Instant::now())) {
                    // The next measurement replaces a lost one.
                    if !self.office.teller.try_tell(&node, NetEvent::RoundTrip { peer: node, time }) {
                        metrics::counter!("starling_net_events_dropped_total").increment(1);
                    }
                }
            }
            Some(Found::Gossip { id, from, author, data }) => self.on_gossip(&id, &from, author, &data),
            Some(other) => self.tell(other),
            None => {}
        }
    }

    fn on_identified(&mut self, peer: PeerId, (agent, name): (String, Option<String>), is_node: bool) {
        let Some(node) = identity::node_id(&peer) else { return };
        self.names.said(node, name);
        let (step, is_new) = self.table.identified(&node, agent, is_node);
        self.take(step);
        self.note_addresses();
        if is_new {
            self.keep_in_touch(node);
            let now = Instant::now();
            if self.office.standing.has_contacts() {
                self.beacon.met(self.newest.has_told_of(&peer, now), now);
            } else {
                self.beacon.news(now);
            }
        }
        if !is_node && self.office.standing.is_named(&node) {
            self.tell_user(NetEvent::Bystander { peer: node });
        }
    }

    fn on_process(&mut self, event: streams::Event) {
        match event {
            streams::Event::ProcessUp { peer, process } => {
                let step = identity::node_id(&peer).and_then(|node| self.table.process_up(&node, process));
                self.take(step);
            }
            streams::Event::ProcessDown { peer, process } => {
                if let Some(node) = identity::node_id(&peer) {
                    self.table.process_down(&node, process);
                }
            }
        }
    }

    /// The members, joiners or contacts have changed. This node keeps in touch with those that are here, and no longer
    /// with strangers, nor with members that are no contacts.
    fn on_standing(&mut self) {
        let standing = self.office.standing.clone();
        self.discovery.set_known(&mut self.swarm, standing.peer_ids());
        for far in self.acquaintances.part_from(|node| standing.is_far(node)) {
            self.discovery.unwant(&mut self.swarm, identity::peer_id(&far));
        }
        for former in self.discovery.set_contacts(&mut self.swarm, standing.contacts()) {
            // A former member may be on the other side of a partition: it is looked for like any acquaintance.
            if !identity::node_id(&former).is_some_and(|node| self.acquaintances.holds(&node)) {
                self.discovery.unwant(&mut self.swarm, former);
            }
        }
        for stranger in self.acquaintances.part(|node| standing.rank(node) > Rank::Stranger) {
            self.discovery.unwant(&mut self.swarm, identity::peer_id(&stranger));
        }
        for node in self.table.nodes() {
            self.keep_in_touch(node);
        }
    }

    /// Keeps a connection with a node that is no stranger. A stranger's claim to be a node is its own word; it is
    /// dialed only if it was found at a meeting place of the flock, and not for ever.
    fn keep_in_touch(&mut self, node: NodeId) {
        let is_far = self.office.standing.is_far(&node);
        let parts_after = self.office.standing.parts_after().filter(|_| is_far);
        self.partings.note(node, parts_after, Instant::now());
        if is_far || self.office.standing.speaks_as(&node) == Rank::Stranger {
            return;
        }
        let is_known = self.office.standing.rank(&node) > Rank::Stranger;
        let (keep, forget) = self.acquaintances.met(node, is_known);
        if let Some(forget) = forget {
            self.discovery.unwant(&mut self.swarm, identity::peer_id(&forget));
        }
        if keep {
            self.discovery.want(&mut self.swarm, identity::peer_id(&node), &[], Origin::Itself);
        }
    }

    /// Lets the sessions write their queued messages, while the swarm still moves the bytes.
    async fn shut_down(mut self, mut endings: mpsc::Receiver<Ended>, done: Option<oneshot::Sender<()>>) {
        self.office.sessions.close_all();
        let deadline = Instant::now() + SHUTDOWN;
        while self.table.sessions() > 0 {
            tokio::select! {
                end = timeout_at(deadline, endings.recv()) => match end {
                    Ok(Some(end)) => {
                        // No step is taken: nothing is opened any more.
                        let _ = self.table.ended(&end.peer, end.serial, end.was_up, Instant::now());
                    }
                    _ => break,
                },
                event = self.swarm.select_next_some() => drop(self.discovery.on_event(&mut self.swarm, event)),
            }
        }
        drop(self.swarm);
        if let Some(done) = done {
            // The asker may have given up.
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
#[path = "network/network_test.rs"]
mod tests;
