//! Starts a node, step by step: its folder, its run, its model, its network, and the threads that keep and train the
//! state.

use super::again::Again;
use super::beginning::{Beginning, engine, variants};
use super::canonical::Canonical;
use super::disk;
use super::driver::{Driver, Parts, Settings};
use super::exports::checkpoint_files;
use super::files;
use super::first::{Begins, first_state};
use super::footing::{self, bind_run, open_store};
use super::guest::{self, Guest};
use super::hearing;
use super::learned::shapes;
use super::learner::Learner;
use super::ledger::{CheckpointPlan, Ledger, Naming};
use super::memory::{self, MemoryNeed, Trains};
use super::mixing::pair_setting;
use super::opened::keep_kernels;
use super::origin::{Origin, RunSource};
use super::ports::Ports;
use super::residuals::Residuals;
use super::settings;
use super::source::Source;
use super::task_schema;
use super::text::{self, Text};
use super::ticket::TicketMaker;
use super::trainer::{Setting, TrainerHandle, course};
use crate::cli::TrainArgs;
use crate::config::node_file::NodeFile;
use crate::exit::{Code, Failure};
use crate::net::{NetEvent, NetEvents, NetHandle, NetOptions, Network};
use crate::watch::event::Event;
use crate::watch::screen::Screen;
use crate::watch::status::StatusServer;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::identity::{self, Identity};
use starling_bootstrap::telemetry::{self, TelemetryError};
use starling_data::Dataset;
use starling_kernels::DeviceChoice;
use starling_protocol::engine::io::Finish;
use starling_protocol::run::RunSpec;
use starling_protocol::state::State;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, wire};
use starling_store::Store;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The user's wishes.
struct Start<'a> {
    args: &'a TrainArgs,
    node: &'a NodeFile,
    origin: &'a Origin,
}

/// A node that does not know its run yet.
struct Place {
    home: PathBuf,
    name: Option<String>,
    identity: Identity,
    store: Arc<Store>,
    screen: Screen,
    metrics: Option<SocketAddr>,
    /// Bytes of memory, and of disk, that the run takes.
    takes: (u64, u64),
}

/// The run to which the node's folder is bound.
struct BoundRun {
    spec: RunSpec,
    /// The encoded specification.
    bytes: Vec<u8>,
    /// The encoded admission ticket; empty without one.
    admission: Vec<u8>,
}

/// The learning side of the node, and the state with which it begins.
struct Model {
    learner: Learner,
    /// The device's name.
    device: String,
    state: Canonical,
}

/// The node's network, and the text or the trainer that its user brings.
struct Connected {
    net: NetHandle,
    events: NetEvents,
    /// Network events from before the driver starts.
    early: Vec<NetEvent>,
    data: Arc<Dataset>,
    guest: Option<Guest>,
    serving: Arc<Source>,
    ticket: TicketMaker,
    ports: Ports,
}

/// The addresses that the user has named.
struct Addresses {
    listen: Vec<Multiaddr>,
    advertise: Vec<Multiaddr>,
    bootstrap: Vec<PeerAddress>,
}

/// Runs a node until its driver ends; a new run may begin with the state of a trained model, or with that of a trainer
/// which has come already.
pub async fn run(
    args: &TrainArgs,
    node: NodeFile,
    origin: Origin,
    (wanted, weights, guest): (settings::Settings, Option<State>, Option<Guest>),
) -> Result<Finish, Failure> {
    let settings::Settings { listen, advertise, mut bootstrap, adopt, device } = wanted;
    let start = Start { args, node: &node, origin: &origin };
    let alone = bootstrap.is_empty() && origin.ticket.is_none();
    let mut place = start.place(&device, alone)?;
    let (run, text) = start.bind(&place, &bootstrap).await?;
    // By amendments the budget may be another one than that of the run file.
    if let Some(settings) = place.store.head().map(|head| head.next.settings).filter(|s| s.amendments > 0) {
        place.takes.1 = disk::check(&settings.in_force(&run.spec), &node, &place.home, args.null_trainer.is_none())?;
    }
    bootstrap.extend(origin.ticket.iter().flat_map(|ticket| ticket.addresses.iter().cloned()));
    let budget = (run.spec.budget.rounds, run.spec.budget.tokens);
    place.screen.fly(&run.spec.name, budget, run.spec.task.is_none());

    let found = args.init || (alone && matches!(origin.run, RunSource::File(_)));
    let begins = Begins { weights, founds: found, peers: !bootstrap.is_empty() };
    let model = start.model(&mut place, &run.spec, &device, begins).await?;
    let guides = bootstrap.iter().filter_map(|named| identity::node_id(&named.peer)).collect();
    let addresses = Addresses { listen, advertise, bootstrap };
    let connected = start.connect(&mut place, &run, (text, guest), addresses).await?;
    let ticket = run.admission.clone();
    let beginning = Beginning { found, force_fork: args.force_lineage, ticket, guides, adopt };
    start.fly(place, run, model, connected, beginning).await
}

impl Start<'_> {
    /// Looks whether the run fits this machine, and opens the node's folder. A node that is `alone` knows no peers.
    fn place(&self, device: &DeviceChoice, alone: bool) -> Result<Place, Failure> {
        let Self { args, node, origin } = *self;
        let home = node.home_for(origin.name());
        keep_kernels(&home);
        let takes = check_room(args, (node, &home), origin, device)?;
        let store = Arc::new(open_store(&home, node.store.max_bytes(), alone)?);
        let identity = identity::load_or_create(&home.join("key")).map_err(|e| Failure::new(Code::Refused, e))?;
        let metrics = telemetry::serve_metrics(&node.metrics).map_err(telemetry_failure)?;
        let name = node.shown_name();
        let screen = Screen::new(identity.node_id().to_string(), name.as_deref(), args.json);
        Ok(Place { home, name, identity, store, screen, metrics, takes })
    }

    /// Finds the run's specification, and its text as far as it is here; binds the folder to the run.
    async fn bind(&self, place: &Place, bootstrap: &[PeerAddress]) -> Result<(BoundRun, Text), Failure> {
        let (overrides, cache) = (&self.args.data, self.node.cache_folder());
        let (spec, text) = match &self.origin.run {
            RunSource::File(file) => text::prepare(file, overrides, &cache, &place.screen).await?,
            RunSource::Spec(spec) => (RunSpec::clone(spec), text::find(spec, overrides, &cache).await?),
        };
        guest::check_flags(self.args, spec.task.is_some())?;
        let admission = self.origin.admission(&spec, &place.identity.node_id())?;
        let bytes = wire::encode_spec(&spec);
        bind_run(&place.store, &place.home, &spec, &bytes)?;
        keep_start(self.args, self.node, &place.home, bootstrap, self.origin);
        Ok((BoundRun { spec, bytes, admission }, text))
    }

    /// Opens the device with the run's model, and loads the state with which the node begins.
    async fn model(
        &self,
        place: &mut Place,
        spec: &RunSpec,
        device: &DeviceChoice,
        begins: Begins,
    ) -> Result<Model, Failure> {
        place.screen.stage("opening the device");
        let learner = Learner::open(self.args, device, spec, self.node.threads)?;
        place.screen.stage("making the first parameters, or reading the state from the disk");
        let state = first_state(spec, &place.store, begins).await?;
        let device = learner.device();
        let (memory_bytes, disk_bytes) = place.takes;
        place.screen.show(&Event::Started {
            version: env!("CARGO_PKG_VERSION"),
            run: spec.name.clone(),
            run_digest: spec.digest().to_string(),
            home: place.home.display().to_string(),
            device: device.clone(),
            parameters: spec.parameters(),
            memory_bytes,
            disk_bytes,
            metrics: place.metrics.map(|address| format!("http://{address}/metrics")),
        });
        Ok(Model { learner, device, state })
    }

    /// Starts the network, and fetches the text's manifest if the text is not here. A run with a trainer of its user's
    /// has no text, but tensors that have to be known, and a socket.
    async fn connect(
        &self,
        place: &mut Place,
        run: &BoundRun,
        (text, guest): (Text, Option<Guest>),
        Addresses { listen, advertise, bootstrap }: Addresses,
    ) -> Result<Connected, Failure> {
        let (node, digest, screen) = (self.node, run.spec.digest(), &mut place.screen);
        let serving = Arc::new(Source::new(place.store.clone(), run.bytes.clone()));
        let ticket = TicketMaker::new(&place.identity, bootstrap.clone());
        let ports = Ports::of(&place.home, listen);
        let verify = hearing::verify(digest, place.identity.node_id());
        let options = NetOptions {
            advertise,
            bootstrap,
            verify: Some(verify),
            ..net_options(node, digest, ports.listen(), serving.clone())
        };
        #[cfg(feature = "byzantine")]
        crate::byzantine::attack(&run.spec, &options).await;
        let started = Network::start(&place.identity, options);
        let (net, mut events) = started.map_err(|e| Failure::new(Code::Refused, e))?;
        let (data, mut early) = text::complete(text, &node.cache_folder(), &net, &mut events, screen).await?;
        let data = Arc::new(data);
        let guest = match (guest, &run.spec.task) {
            (None, Some(task)) => {
                let network = (&net, &mut events, &mut early);
                let schema = task_schema::complete(task, &place.home, network, screen).await?;
                let files = files::open(&run.spec, &data, &place.home).await?;
                let known = (schema, place.identity.node_id().to_string(), files);
                Some(Guest::open((self.args, node, &place.home), &run.spec, task, known)?)
            }
            (guest, _) => guest,
        };
        match &guest {
            Some(guest) => serving.set_schema(guest.schema().encode()),
            None => {
                show_data(&data, &run.spec, screen);
                data.require_sequences(run.spec.model.seq_len as usize)?;
            }
        }
        serving.set_data(data.clone());
        Ok(Connected { net, events, early, data, guest, serving, ticket, ports })
    }

    /// Starts the engine and the threads of state and training, and hands everything to the driver.
    async fn fly(
        &self,
        place: Place,
        run: BoundRun,
        model: Model,
        connected: Connected,
        beginning: Beginning,
    ) -> Result<Finish, Failure> {
        let Place { home, name, identity, store, mut screen, .. } = place;
        let BoundRun { spec, bytes, admission } = run;
        let Model { learner, device, state } = model;
        let Connected { net, events, early, data, guest, serving, ticket, ports } = connected;
        let (me, elements) = (identity.node_id(), spec.parameters() as usize);
        #[cfg(feature = "byzantine")]
        crate::byzantine::speak(identity.signer(), spec.digest());
        let engine = engine(&identity, &spec, &store, &state, beginning)?;
        let (extras, more) = checkpoint_files(&self.origin.run, &home, guest.as_ref().map(Guest::schema))?;
        let tensors = shapes(&spec, guest.as_ref().map(Guest::schema));
        let naming = Naming { node: me, spec: bytes, tensors, extras, more };
        let ways = (Fragments::of(&spec.sync, state.elements()), spec.sync.mode);
        let residuals = Residuals::restore(&store, me, state.record.seq, ways, &mut screen).await?;
        let plan = checkpoint_plan(self.node, &home)?;
        let ledger = Ledger::start(store.clone(), spec.clone(), naming, state, (self.node.snapshot_every, plan))?;
        serving.set_ledger(&ledger.jobs);
        let gossip = pair_setting(&spec, &net);
        let pair_router = gossip.as_ref().map(|gossip| gossip.exchanger.router.clone());
        let (course, setting) = (course(&spec.sync, gossip), setting(&spec, &residuals));
        let task = learner.task(&spec, &data, guest.as_ref())?;
        let trainer = TrainerHandle::start(task, course, setting, ledger.state.clone(), store.clone())?;
        let variants = variants(&spec, store.clone(), data.clone(), (elements, &residuals), pair_router);
        let (_status, questions) = StatusServer::start(&home)?;
        let settings = Settings {
            home,
            name,
            is_null: self.args.null_trainer.is_some(),
            device,
            elements,
            validate_every: self.node.validate_every(spec.sync.mode),
            validate_sequences: self.node.validate_sequences,
            halt_on_divergence: self.node.inner.halt_on_divergence,
            ticket,
            admission,
            ports,
            guest: guest.as_ref().map(Guest::note),
        };
        Driver::run(Parts {
            run: spec.digest(),
            me,
            spec,
            engine,
            net,
            net_events: events,
            early,
            ledger,
            trainer,
            store,
            data,
            residuals,
            variants,
            questions,
            screen,
            settings,
        })
        .await
    }
}

/// The failure of logs or metrics that cannot be set up.
pub fn telemetry_failure(error: TelemetryError) -> Failure {
    let code = if error.is_usage() { Code::Usage } else { Code::Refused };
    Failure::new(code, error)
}

/// The options of a node's network, but for its addresses and its peers.
fn net_options(node: &NodeFile, run: Digest, listen: Vec<Multiaddr>, source: Arc<Source>) -> NetOptions {
    NetOptions {
        run,
        listen,
        advertise: Vec::new(),
        bootstrap: Vec::new(),
        mdns: node.mdns,
        relay: node.relay,
        name: node.name.clone(),
        hidden: false,
        source,
        verify: None,
    }
}

/// The settings of all rounds, as the trainer has them.
fn setting(spec: &RunSpec, residuals: &Residuals) -> Setting {
    Setting {
        seed: spec.seed,
        inner: spec.inner.clone(),
        sync: spec.sync.clone(),
        budget: spec.budget.clone(),
        feedback: residuals.shared(),
    }
}

/// Keeps in the folder how the node was started, so that the folder alone is enough for the next start. A repeated
/// start leaves what is there.
fn keep_start(args: &TrainArgs, node: &NodeFile, home: &Path, bootstrap: &[PeerAddress], origin: &Origin) {
    if args.run.is_none() && args.join.is_none() && Again::is_kept(home) {
        return;
    }
    let run = match &origin.run {
        RunSource::File(file) => Some(&**file),
        RunSource::Spec(_) => None,
    };
    let ticket = origin.ticket.as_ref().map(ToString::to_string);
    Again::new(home, node, bootstrap, (run, &args.data), ticket).keep(home);
}

/// Checks that this machine has the memory and the disk that the run takes; returns the bytes of both.
fn check_room(
    args: &TrainArgs,
    (node, home): (&NodeFile, &Path),
    origin: &Origin,
    device: &DeviceChoice,
) -> Result<(u64, u64), Failure> {
    let spec = match &origin.run {
        RunSource::File(file) => text::check(file)?.0,
        RunSource::Spec(spec) => RunSpec::clone(spec),
    };
    let trains = footing::trains(args, node, device, &spec)?;
    let memory = MemoryNeed::of_run(&spec, node.threads, trains);
    memory::check(&memory)?;
    let disk = disk::check(&spec, node, home, trains != Trains::Nowhere)?;
    Ok((memory.total(), disk))
}

/// The folder is told to other processes, which may run elsewhere, so its path is absolute.
fn checkpoint_plan(node: &NodeFile, home: &Path) -> Result<CheckpointPlan, Failure> {
    let table = &node.checkpoint;
    let every = table.every().map_err(|why| Failure::message(Code::Usage, why))?;
    let folder = checkpoints_folder(&std::path::absolute(home).unwrap_or_else(|_| home.to_path_buf()));
    Ok(CheckpointPlan { folder, every, keep: table.keep })
}

/// The folder of a node's checkpoints.
pub fn checkpoints_folder(home: &Path) -> PathBuf {
    home.join("checkpoints")
}

fn show_data(data: &Dataset, spec: &RunSpec, screen: &mut Screen) {
    screen.show(&Event::Data {
        manifest: spec.data.manifest.to_string(),
        train_sequences: data.train_sequences(spec.model.seq_len as usize),
        validation_bytes: data.manifest().validation_bytes,
        order1_entropy: data.order1_entropy(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_named_from_the_root() {
        let plan = checkpoint_plan(&NodeFile::default(), Path::new("relative/home")).expect("the default is sound");
        assert!(plan.folder.is_absolute() && plan.folder.ends_with("relative/home/checkpoints"), "{:?}", plan.folder);
    }
}
