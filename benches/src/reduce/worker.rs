//! One member of the measured flock: a process with a real network and a reducer. It takes orders on its standard
//! input, a JSON object a line, and answers on its standard output.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use starling_benches::{cpu_seconds, heap, way::Way};
use starling_bootstrap::{addresses, identity::Identity};
use starling_node::net::fetch::NothingToFetch;
use starling_node::net::{NetEvent, NetHandle, NetOptions, Network};
use starling_node::reduce::{BulkRouter, NetLinks, OwnersReducer, ReduceEngine, ReduceJob, RingReducer};
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::run::EngineKind;
use starling_protocol::update::Stated;
use starling_protocol::{Digest, NodeId, update};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The statement of every member: all weigh the same, and no norm is too large.
pub const EQUAL: Stated = Stated { tokens: 1, steps: 1, norm: f32::MAX };

/// The time in which members must connect.
const MEETING: Duration = Duration::from_secs(60);

/// An order to the worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Connect to these members, in ring order, this worker among them.
    Meet { peers: Vec<Member> },
    /// Reduce `elements` values in turn `turn`; owners deal chunks by the upload bandwidths of the peers.
    Reduce { turn: u32, elements: usize, engine: String, codec: String, kbps: Vec<u32> },
}

/// The worker's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Here(Member),
    Met,
    /// The time by the clock and of all threads, in seconds, and the result.
    Reduced {
        seconds: f64,
        cpu: f64,
        digest: String,
        /// Largest distance from the mean, relative to the largest absolute value of the mean.
        error: f64,
        /// Bytes of the encoded update.
        encoded: usize,
        /// Peak of the bytes in use during the reduction, the update among them, beyond those before it.
        held: usize,
        /// This worker's uplink as it has measured it, in kbit/s; 0 without a measurement.
        upload_kbps: u32,
    },
}

/// The address of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    pub node: String,
    pub address: String,
}

/// The values that member `index` offers.
pub fn offered(index: usize, elements: usize) -> Vec<f32> {
    values(index).take(elements).collect()
}

/// Small values of both signs, of different sizes from block to block.
fn values(index: usize) -> impl Iterator<Item = f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(index as u64 + 1);
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0usize..).map(move |i| (next() as f32 / 2f32.powi(31) - 0.5) * 1e-3 / (1 + (i / 256) % 7) as f32)
}

/// Obeys orders until the input ends.
///
/// # Errors
/// Any failure; the parent shows it, since it is written to the standard error.
pub fn run(index: usize, host: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(obey(index, host))
}

fn answer(answer: &Answer) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

/// Lines of the standard input, read on a thread of their own.
fn orders() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn obey(index: usize, host: &str) -> Result<()> {
    let run = Digest::of("starling bench reduce", &[]);
    let options = NetOptions {
        run,
        listen: vec![addresses::parse(&format!("/ip4/{host}/tcp/0"))?],
        advertise: Vec::new(),
        bootstrap: Vec::new(),
        mdns: false,
        relay: false,
        name: None,
        hidden: false,
        source: Arc::new(NothingToFetch),
        verify: None,
    };
    let (net, mut events) = Network::start(&Identity::generate()?, options)?;
    let router = BulkRouter::new(run);
    let address = loop {
        match events.recv().await.context("the network ended")? {
            NetEvent::Listening { address } => break address,
            NetEvent::ListenFailed { why } => bail!("{why}"),
            _ => {}
        }
    };
    answer(&Answer::Here(Member { node: net.me().to_string(), address: address.to_string() }))?;
    let routed = router.clone();
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let NetEvent::Bulk { from, stream } = event {
                routed.route(from, stream);
            }
        }
    });
    let mut flock = Flock { index, run, net, router, members: Vec::new(), vectors: Vectors::default() };
    let mut orders = orders();
    while let Some(line) = orders.recv().await {
        match serde_json::from_str(&line).context("an order")? {
            Order::Meet { peers } => flock.meet(&peers).await?,
            Order::Reduce { turn, elements, engine, codec, kbps } => {
                flock.reduce(turn, elements, Way::parse(&engine, &codec)?, &kbps).await?;
            }
        }
    }
    flock.net.shutdown().await;
    Ok(())
}

struct Flock {
    index: usize,
    run: Digest,
    net: NetHandle,
    router: BulkRouter,
    members: Vec<NodeId>,
    vectors: Vectors,
}

#[derive(Default)]
struct Vectors {
    /// The values that this member offers.
    mine: Arc<Vec<f32>>,
    /// The mean of all members' values.
    mean: Vec<f32>,
    /// The result of the reduction.
    out: Vec<f32>,
}

impl Vectors {
    fn new(index: usize, members: usize, elements: usize) -> Self {
        let mut mean = vec![0.0; elements];
        for member in 0..members {
            mean.iter_mut().zip(values(member)).for_each(|(sum, value)| *sum += value / members as f32);
        }
        Self { mine: Arc::new(offered(index, elements)), out: mean.clone(), mean }
    }
}

impl Flock {
    async fn meet(&mut self, peers: &[Member]) -> Result<()> {
        for peer in peers {
            let address = addresses::parse_with_peer(&peer.address)?;
            let node = starling_bootstrap::identity::node_id(&address.peer).context("a peer id that is no node's")?;
            self.members.push(node);
            if node != self.net.me() {
                self.net.connect(address).await;
            }
        }
        let deadline = Instant::now() + MEETING;
        while self.net.peers().len() + 1 < self.members.len() {
            ensure!(Instant::now() < deadline, "met {} of {} members", self.net.peers().len() + 1, self.members.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        answer(&Answer::Met)
    }

    async fn reduce(&mut self, turn: u32, elements: usize, way: Way, kbps: &[u32]) -> Result<()> {
        let codec = way.codec;
        if self.vectors.mine.len() != elements {
            self.vectors = Vectors::default();
            self.vectors = Vectors::new(self.index, self.members.len(), elements);
        }
        let contribution =
            |member: &NodeId| Contribution { member: *member, stated: EQUAL, payload: Digest::default() };
        let job = ReduceJob {
            run: self.run,
            key: AttemptKey { lineage: Digest::default(), seq: u64::from(turn), attempt: 0, set: Digest::default() },
            codec,
            members: self.members.iter().map(contribution).collect(),
            flock: {
                let mut flock: Vec<_> = self.members.iter().copied().zip(kbps.iter().copied()).collect();
                flock.sort_unstable();
                flock
            },
            grid: Arc::default(),
            me: self.net.me(),
            delta: Arc::clone(&self.vectors.mine),
            feedback: Arc::default(),
            parts: Arc::default(),
            sums: Arc::default(),
        };
        let links = NetLinks::new(self.net.clone(), self.router.clone());
        let before = heap::begin();
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let engine: Box<dyn ReduceEngine> = match way.engine {
            EngineKind::Ring => Box::new(RingReducer::new(links)),
            EngineKind::Owners => Box::new(OwnersReducer::new(links)),
        };
        let update = engine.run(job, Arc::new(|_| {})).await?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = cpu_seconds().zip(cpu).map_or(0.0, |(after, before)| after - before);
        let held = heap::most().saturating_sub(before);
        let digest = update::digest(&update).to_string();
        let Vectors { mean, out, .. } = &mut self.vectors;
        update::decode(codec, &update, out)?;
        let largest = mean.iter().fold(0f32, |m, x| m.max(x.abs()));
        let apart = out.iter().zip(&*mean).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        let (error, encoded) = (f64::from(apart / largest), update.len());
        let upload_kbps = self.net.end_uplink_round();
        answer(&Answer::Reduced { seconds, cpu, digest, error, encoded, held, upload_kbps })
    }
}
