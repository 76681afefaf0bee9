//! Sets a node up, from the command line to a running driver.

use super::again::Again;
use super::beginning::{Beginning, engine, variants};
use super::disk;
use super::driver::{Driver, Parts, Settings};
use super::first::{Begins, first_state};
use super::footing::{bind_run, open_store};
use super::guest::{self, Guest};
use super::hearing;
use super::learned::shapes;
use super::learner::Learner;
use super::ledger::{CheckpointPlan, Ledger, Naming};
use super::memory::{self, MemoryNeed, Trains};
use super::mixing::pair_setting;
use super::origin::{Asked, Origin, RunSource};
use super::ports::Ports;
use super::residuals::Residuals;
use super::settings;
use super::source::Source;
use super::task_schema;
use super::text;
use super::ticket::TicketMaker;
use super::tokenizer::tokenizer_file;
use super::trainer::{Setting, TrainerHandle, course};
use super::weights::Load;
use crate::cli::TrainArgs;
use crate::config::node_file::NodeFile;
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use crate::net::{NetOptions, Network};
use crate::watch::event::Event;
use crate::watch::screen::Screen;
use crate::watch::status::StatusServer;
use crate::watch::terminal;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::identity;
use starling_bootstrap::telemetry::{self, TelemetryError};
use starling_kernels::DeviceChoice;
use starling_protocol::engine::io::Finish;
use starling_protocol::run::RunSpec;
use starling_protocol::state::State;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, wire};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Vulkan drivers log complaints that do not matter to a node with a device.
const QUIET_LOGS: &str = "wgpu_hal=off";

/// Runs `starling train`; `load` reads the model that a new run begins from.
pub fn train(args: &TrainArgs, load: Load) -> Result<ExitCode, Failure> {
    let again = match &args.home {
        Some(home) if args.run.is_none() && args.join.is_none() => Some(Again::of(home)?),
        _ => None,
    };
    let node = node_file(args, again.as_ref())?;
    let wanted = settings::Settings::of(args, &node)?;
    let mut asked = Asked::from_args(args, again.as_ref(), &node)?;
    if let Some(file) = &asked.file {
        guest::check_flags(args, file.is_external())?;
    }
    let weights = match (&args.from, &mut asked.file) {
        (Some(folder), Some(file)) => Some(load(folder)?.begin(file)?),
        _ => None,
    };
    if args.print_config {
        terminal::put(&settings::shown(args, &node, &asked)?);
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init_logs(&node.log, QUIET_LOGS, || terminal::Log).map_err(telemetry_failure)?;
    let threads = node.network_threads();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let finish = runtime.block_on(async {
        let (guest, begun) = guest::begin(args, &node, &mut asked).await?.unzip();
        let origin = asked.resolve(&node).await?;
        run(args, node, origin, (wanted, begun.or(weights), guest)).await
    })?;
    // Blocking threads that still read a file must not hold up the exit.
    runtime.shutdown_timeout(Duration::from_secs(2));
    match finish {
        Finish::BudgetSpent | Finish::Left => Ok(ExitCode::SUCCESS),
        // If two processes run under one identity, the later one gives way (`docs/protocol/5-membership.md` §5.6).
        Finish::Fenced => Err(Failure::message(
            Code::IdentityInUse,
            "identity in use: another process with this key was started before this one and is alive; stop one of \
             the two, or give this node a --home of its own, in which it makes a new key",
        )),
        Finish::RunMismatch { keys, .. } => Err(Failure::message(
            Code::ConfigMismatch,
            format!(
                "the flock runs something else; these keys differ: {}. Use the flock's run file, or a ticket",
                keys.join("; ")
            ),
        )),
    }
}

fn telemetry_failure(error: TelemetryError) -> Failure {
    let code = if error.is_usage() { Code::Usage } else { Code::Refused };
    Failure::new(code, error)
}

/// The node file, or the settings of the start that is repeated, with the flags over it.
fn node_file(args: &TrainArgs, again: Option<&Again>) -> Result<NodeFile, Failure> {
    let mut node = match (&args.config, again) {
        (None, again) => again.map(|again| again.node.clone()).unwrap_or_default(),
        (Some(path), None) => NodeFile::load(path)?,
        (Some(path), Some(again)) => NodeFile::load(path)?.completed_from(&again.node),
    };
    let replace = |target: &mut Vec<String>, flags: &[String]| {
        if !flags.is_empty() {
            *target = flags.to_vec();
        }
    };
    replace(&mut node.listen, &args.listen);
    replace(&mut node.advertise, &args.advertise);
    replace(&mut node.bootstrap, &args.bootstrap);
    if let Some(home) = &args.home {
        node.home = Some(home.clone());
    }
    if let Some(cache) = &args.cache {
        node.cache = Some(cache.clone());
    }
    if let Some(device) = &args.device {
        node.device = device.clone();
    }
    if let Some(threads) = args.threads {
        node.threads = threads;
    }
    if let Some(metrics) = &args.metrics {
        node.metrics = metrics.clone();
    }
    if let Some(log) = &args.log {
        node.log = log.clone();
    }
    node.mdns &= !args.no_mdns;
    Ok(node)
}

async fn run(
    args: &TrainArgs,
    node: NodeFile,
    origin: Origin,
    (wanted, weights, guest): (settings::Settings, Option<State>, Option<Guest>),
) -> Result<Finish, Failure> {
    let settings::Settings { listen, advertise, mut bootstrap, adopt, device } = wanted;
    let home = node.home_for(origin.name());
    let (memory_bytes, disk_bytes) = check_room(args, (&node, &home), &origin, &device)?;
    let alone = bootstrap.is_empty() && origin.ticket.is_none();
    let store = Arc::new(open_store(&home, node.store.max_bytes(), alone)?);
    let identity = identity::load_or_create(&home.join("key")).map_err(|e| Failure::new(Code::Refused, e))?;
    let metrics = telemetry::serve_metrics(&node.metrics).map_err(telemetry_failure)?;
    let name = node.shown_name();
    let mut screen = Screen::new(identity.node_id().to_string(), name.as_deref(), args.json);

    let (spec, text) = match &origin.run {
        RunSource::File(file) => text::prepare(file, &args.data, &node.cache_folder(), &screen).await?,
        RunSource::Spec(spec) => (RunSpec::clone(spec), text::find(spec, &args.data, &node.cache_folder()).await?),
    };
    guest::check_flags(args, spec.task.is_some())?;
    let admission = origin.admission(&spec, &identity.node_id())?;
    let spec_bytes = wire::encode_spec(&spec);
    bind_run(&store, &home, &spec, &spec_bytes)?;
    keep_start(args, &node, &home, &bootstrap, &origin);
    bootstrap.extend(origin.ticket.iter().flat_map(|ticket| ticket.addresses.iter().cloned()));
    screen.fly(&spec.name, spec.budget.rounds, spec.budget.tokens);

    screen.stage("opening the device");
    let learner = Learner::open(args, &device, &spec, node.threads)?;
    screen.stage("making the first parameters, or reading the state from the disk");
    let found = args.init || (alone && matches!(origin.run, RunSource::File(_)));
    let begins = Begins { weights, founds: found, peers: !bootstrap.is_empty() };
    let canonical = first_state(&spec, &store, begins).await?;
    let device_name = learner.device();
    screen.show(&Event::Started {
        version: env!("CARGO_PKG_VERSION"),
        run: spec.name.clone(),
        run_digest: spec.digest().to_string(),
        home: home.display().to_string(),
        device: device_name.clone(),
        parameters: spec.parameters(),
        memory_bytes,
        disk_bytes,
        metrics: metrics.map(|address| format!("http://{address}/metrics")),
    });

    let serving = Arc::new(Source::new(store.clone(), spec_bytes.clone()));
    let ticket_maker = TicketMaker::new(&identity, bootstrap.clone());
    let ports = Ports::of(&home, listen);
    let guides = bootstrap.iter().filter_map(|named| identity::node_id(&named.peer)).collect();
    let verify = hearing::verify(spec.digest(), identity.node_id());
    let net_options = NetOptions {
        advertise,
        bootstrap,
        verify: Some(verify),
        ..net_options(&node, spec.digest(), ports.listen(), serving.clone())
    };
    #[cfg(feature = "byzantine")]
    crate::byzantine::attack(&spec, &net_options).await;
    let (net, mut net_events) = Network::start(&identity, net_options).map_err(|e| Failure::new(Code::Refused, e))?;
    let (data, mut early) = text::complete(text, &node.cache_folder(), &net, &mut net_events, &mut screen).await?;
    let guest = match (guest, &spec.task) {
        (None, Some(task)) => {
            let schema = task_schema::complete(task, &home, (&net, &mut net_events, &mut early), &mut screen).await?;
            Some(Guest::open((args, &node, &home), &spec, task, (schema, identity.node_id().to_string()))?)
        }
        (guest, _) => guest,
    };
    match &guest {
        Some(guest) => serving.set_schema(guest.schema().encode()),
        None => {
            show_data(&data, &spec, &mut screen);
            data.require_sequences(spec.model.seq_len as usize)?;
        }
    }
    let data = Arc::new(data);
    serving.set_data(data.clone());

    let ticket = admission.clone();
    let beginning = Beginning { found, force_fork: args.force_lineage, ticket, guides, adopt };
    #[cfg(feature = "byzantine")]
    crate::byzantine::speak(identity.signer(), spec.digest());
    let engine = engine(&identity, &spec, &store, &canonical, beginning)?;
    let extras = tokenizer_file(&origin.run, &home)?;
    let tensors = shapes(&spec, guest.as_ref().map(Guest::schema));
    let naming = Naming { node: identity.node_id(), spec: spec_bytes, tensors, extras };
    let fragments = Fragments::of(&spec.sync, canonical.elements());
    let ways = (fragments, spec.sync.mode);
    let residuals = Residuals::restore(&store, identity.node_id(), canonical.record.seq, ways, &mut screen).await?;
    let plan = checkpoint_plan(&node, &home)?;
    let ledger = Ledger::start(store.clone(), spec.clone(), naming, canonical, (node.snapshot_every, plan))?;
    serving.set_ledger(&ledger.jobs);
    let validate_every = node.validate_every(spec.sync.mode);
    let gossip = pair_setting(&spec, &net);
    let pair_router = gossip.as_ref().map(|gossip| gossip.exchanger.router.clone());
    let (course, setting) = (course(&spec.sync, gossip), setting(&spec, &residuals));
    let task = learner.task(&spec, &data, guest.as_ref())?;
    let trainer = TrainerHandle::start(task, course, setting, ledger.state.clone(), store.clone())?;
    let elements = spec.parameters() as usize;
    let variants = variants(&spec, store.clone(), data.clone(), (elements, &residuals), pair_router);
    let (_status, questions) = StatusServer::start(&home)?;
    Driver::run(Parts {
        run: spec.digest(),
        me: identity.node_id(),
        spec,
        engine,
        net,
        net_events,
        early,
        ledger,
        trainer,
        store,
        data,
        residuals,
        variants,
        questions,
        screen,
        settings: Settings {
            home,
            name,
            is_null: args.null_trainer.is_some(),
            device: device_name,
            elements,
            validate_every,
            validate_sequences: node.validate_sequences,
            halt_on_divergence: node.inner.halt_on_divergence,
            ticket: ticket_maker,
            admission,
            ports,
            guest: guest.as_ref().map(Guest::note),
        },
    })
    .await
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
    let trains = match device {
        _ if args.null_trainer.is_some() => Trains::Nowhere,
        DeviceChoice::Auto | DeviceChoice::Cpu => Trains::Here,
        DeviceChoice::Wgpu(_) | DeviceChoice::Cuda(_) => Trains::OnADevice,
    };
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

fn show_data(data: &starling_data::Dataset, spec: &RunSpec, screen: &mut Screen) {
    screen.show(&Event::Data {
        manifest: spec.data.manifest.to_string(),
        train_sequences: data.train_sequences(spec.model.seq_len as usize),
        validation_bytes: data.manifest().validation_bytes,
        order1_entropy: data.order1_entropy(),
    });
}

/// The folder of the node that a command means: `--home`, or the default one for the run file's name.
pub fn home_of(run: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, Failure> {
    match (home, run) {
        (Some(home), _) => Ok(home.to_path_buf()),
        (None, Some(run)) => Ok(NodeFile::default().home_for(&RunFile::load(run)?.name)),
        (None, None) => Err(Failure::message(Code::Usage, "say which node: give --run RUN.toml or --home DIR")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn arguments(text: &str) -> TrainArgs {
        match Cli::try_parse_from(text.split(' ')).expect("it parses").command {
            Command::Train(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_node_file_for_a_known_node_leaves_its_peers_and_its_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.toml");
        let kept = NodeFile { bootstrap: vec!["kept".into()], cache: Some("kept".into()), ..NodeFile::default() };
        let again = Again { ticket: None, node: kept, run: None };
        let args = arguments(&format!("starling train --home h --config {}", path.display()));
        let settings = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let node = node_file(&args, Some(&again)).expect("it is sound");
            (node.bootstrap, node.cache, node.device)
        };
        let other = settings("device = \"cpu\"");
        assert_eq!(other, (vec!["kept".to_owned()], Some("kept".into()), "cpu".to_owned()));
        let (bootstrap, cache, _) = settings("bootstrap = [\"new\"]\ncache = \"new\"");
        assert_eq!((bootstrap, cache), (vec!["new".to_owned()], Some("new".into())));
        let flag = TrainArgs { bootstrap: vec!["flag".into()], ..args };
        assert_eq!(node_file(&flag, Some(&again)).expect("it is sound").bootstrap, ["flag"]);
    }

    #[test]
    fn checkpoints_are_named_from_the_root() {
        let plan = checkpoint_plan(&NodeFile::default(), Path::new("relative/home")).expect("the default is sound");
        assert!(plan.folder.is_absolute() && plan.folder.ends_with("relative/home/checkpoints"), "{:?}", plan.folder);
    }
}
