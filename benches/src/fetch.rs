//! `bench-fetch`: a node's processor time for one fetch stream, one request, one mebibyte that it serves, and one
//! mebibyte that it looks up and whose stream the peer leaves, each measured alone. The budget of strangers' fetches
//! (`node/net/src/budget.rs`) rests on these figures.
//!
//! The node is a process of its own, so that the asking peer's time is not counted. They speak over loopback, with the
//! network's own streams and encryption.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::json;
use starling_benches::{append_row, json_file};
use starling_bootstrap::addresses::split;
use starling_bootstrap::identity::Identity;
use starling_node::net::fetch::{
    Answer, Expect, FetchRefusal, FetchRequest, FetchSource, NothingToFetch, Patience, request,
};
use starling_node::net::{NetEvent, NetHandle, NetOptions, Network};
use starling_protocol::digest::ByteHasher;
use starling_protocol::{Digest, NodeId};
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The variable that names the file to serve, set in the serving process.
const SERVES: &str = "STARLING_BENCH_FETCH_SERVES";
const MIB: usize = 1 << 20;
/// Concurrent requests: fewer than the streams that a stranger may have.
const AT_ONCE: usize = 2;
/// Clock ticks a second in `/proc/PID/stat`.
const TICKS: f64 = 100.0;

/// Measure the cost of fetches to the node that serves them
#[derive(Parser)]
struct Arguments {
    /// Number of requests of each case; a tenth of it for mebibytes
    #[arg(long, default_value_t = 10_000)]
    times: usize,
    /// Append one JSON object a case to this file (default: the file that the variable JSON names)
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A source of a short answer from memory, and of a mebibyte from a file, which it checks as a store does.
struct Shelf {
    path: PathBuf,
}

impl Shelf {
    fn open(&self) -> std::io::Result<Answer> {
        let mut file = std::fs::File::open(&self.path)?;
        let (mut hasher, mut piece) = (ByteHasher::new("starling bench fetch", MIB as u64), vec![0; 64 << 10]);
        for _ in 0..MIB / piece.len() {
            file.read_exact(&mut piece)?;
            hasher.put(&piece);
        }
        std::hint::black_box(hasher.finish());
        file.rewind()?;
        Ok(Answer::File { file, len: MIB as u64 })
    }
}

impl FetchSource for Shelf {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        match request {
            FetchRequest::Spec => Ok(vec![7; 64].into()),
            FetchRequest::StateChunk(_) => self.open().map_err(|_| FetchRefusal::Internal),
            _ => Err(FetchRefusal::NotFound),
        }
    }
}

fn options(source: impl FetchSource) -> Result<NetOptions> {
    Ok(NetOptions {
        run: Digest([0x5b; 32]),
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse()?],
        advertise: Vec::new(),
        bootstrap: Vec::new(),
        mdns: false,
        relay: false,
        name: None,
        hidden: false,
        source: Arc::new(source),
        verify: None,
    })
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if let Some(path) = std::env::var_os(SERVES) {
        return runtime.block_on(serve(path.into()));
    }
    let path = std::env::temp_dir().join(format!("starling-bench-fetch-{}", std::process::id()));
    std::fs::write(&path, (0..MIB).map(|at| (at / 7) as u8).collect::<Vec<_>>())?;
    let mut child = Command::new(std::env::current_exe()?).env(SERVES, &path).stdout(Stdio::piped()).spawn()?;
    let measured = runtime.block_on(measure(&arguments, &mut child));
    child.kill()?;
    child.wait()?;
    std::fs::remove_file(&path)?;
    measured
}

/// Serves until it is killed; prints its address first.
async fn serve(path: PathBuf) -> Result<()> {
    let (_net, mut events) = Network::start(&Identity::generate()?, options(Shelf { path })?)?;
    while let Some(event) = events.recv().await {
        if let NetEvent::Listening { address } = event {
            println!("{address}");
        }
    }
    Ok(())
}

/// The name of a case, and its number of requests.
type Case = (&'static str, usize);

async fn measure(arguments: &Arguments, child: &mut Child) -> Result<()> {
    let said = BufReader::new(child.stdout.take().context("its output")?).lines().next().context("its address")??;
    let server = split(&said.parse()?).context("an address with a peer")?;
    let peer = starling_bootstrap::identity::node_id(&server.peer).context("an ed25519 peer")?;
    let options = NetOptions { bootstrap: vec![server], ..options(NothingToFetch)? };
    let (net, mut events) = Network::start(&Identity::generate()?, options)?;
    while !matches!(events.recv().await.context("the network ended")?, NetEvent::PeerUp { .. }) {}
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let json = json_file(arguments.json.as_deref());
    let cases: [Case; 4] = [
        ("request", arguments.times),
        ("stream", arguments.times),
        ("mebibyte", arguments.times / 10),
        ("mebibyte left", arguments.times / 10),
    ];
    for case in cases {
        let before = cpu_seconds(child.id())?;
        let began = std::time::Instant::now();
        asks(&net, peer, case).await?;
        let (spent, lasted) = (cpu_seconds(child.id())? - before, began.elapsed().as_secs_f64());
        let each = 1e6 * spent / case.1 as f64;
        println!("{:>14}: {each:7.1} us of processor time each ({} times, {lasted:.1} s)", case.0, case.1);
        append_row(json.as_deref(), &json!({"bench": "fetch", "case": case.0, "times": case.1, "cpu_us": each}))?;
    }
    Ok(())
}

/// Makes the requests of a case, a few at a time.
async fn asks(net: &NetHandle, peer: NodeId, (case, times): Case) -> Result<()> {
    let left = Arc::new(AtomicUsize::new(times));
    let mut askers = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (net, left) = (net.clone(), Arc::clone(&left));
        askers.spawn(async move {
            let mut stream = net.open_fetch(peer).await?;
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                let patience = Patience::default();
                let chunk = FetchRequest::StateChunk(Digest([1; 32]));
                match case {
                    "request" => drop(request(&mut stream, &FetchRequest::Spec, Expect::Exactly(64), patience).await?),
                    "mebibyte" => drop(request(&mut stream, &chunk, Expect::Exactly(MIB as u64), patience).await?),
                    "stream" => {
                        stream = net.open_fetch(peer).await?;
                        drop(request(&mut stream, &FetchRequest::Spec, Expect::Exactly(64), patience).await?);
                    }
                    "mebibyte left" => {
                        stream = net.open_fetch(peer).await?;
                        stream.write_all(&chunk.encode()).await?;
                        stream.flush().await?;
                        stream.read_u8().await?;
                    }
                    other => bail!("no such case: {other}"),
                }
            }
            Ok(())
        });
    }
    while let Some(asked) = askers.join_next().await {
        asked??;
    }
    Ok(())
}

/// Processor time of a process since its start.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("its name")?.1.split_whitespace().collect();
    ensure!(fields.len() > 12, "/proc/{pid}/stat is too short");
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / TICKS)
}
