//! The command line. Its comments are what `--help` prints, so brackets in them are no links.

#![allow(rustdoc::broken_intra_doc_links)]

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Trains one model on many machines that nobody coordinates.
#[derive(Debug, Parser)]
#[command(name = "starling", version, about, propagate_version = true, after_help = crate::exit::table())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a run file, from flags or a few questions
    New(NewArgs),
    /// Check whether this machine can run a node, and say how to mend what is in the way
    Doctor(DoctorArgs),
    /// Train, alone or with peers; founds a flock when started with neither --join nor --bootstrap
    Train(Box<TrainArgs>),
    /// Print a ticket that lets another machine join this run
    Invite(InviteArgs),
    /// Shut a node, or a ticket, out of this run for good; for the run's creator
    Revoke(RevokeArgs),
    /// Amend what may change in this run: budget, learning rate, partition policy; for the run's creator, if it has one
    Change(ChangeArgs),
    /// Agree to an amendment of a run without a creator, for this machine's node
    Agree(AgreeArgs),
    /// Ask the node running on this machine what it does and what it waits for
    Status(StatusArgs),
    /// Say why a round has as many inner steps as it has, and what other numbers would give
    Explain(ExplainArgs),
    /// Write, list, verify or export checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Write the history on disk out, for other programs to follow and verify
    #[command(subcommand)]
    Chain(ChainCommand),
    /// Check the history on disk: every sample counted once, every record in its place
    Audit(AuditArgs),
    /// Write text with a trained model
    Generate(GenerateArgs),
    /// Measure a trained model on a text: nats per token and per byte, perplexity
    Eval(EvalArgs),
}

/// The flags that name a trained model; one of them is needed.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ModelArgs {
    /// Checkpoint folder
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Folder of a node, running or not: its newest state
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
    /// Run file of a node, running or not, in its default folder
    #[arg(long, value_name = "RUN.toml")]
    pub run: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct NewArgs {
    /// File to write; left out: the run's name, with .toml
    #[arg(value_name = "RUN.toml")]
    pub output: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Name of the run: a-z, 0-9 and -; left out: that of the file, or my-run
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Text to train on: file, folder or glob; may be repeated
    #[arg(long, visible_alias = "text", value_name = "PATH")]
    pub data: Vec<String>,
    /// bytes, or the path of a Hugging Face tokenizer.json
    #[arg(long, value_name = "bytes|FILE")]
    pub tokenizer: Option<String>,
    /// Size of the model: 0.1m, 1m, 3m, 10m, 30m, 125m, 350m or 1b; left out: the largest for which there are memory
    /// and text
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Tokens to train on, such as 20m; left out: twenty a parameter, if the text has them
    #[arg(long, value_name = "N")]
    pub tokens: Option<String>,
    /// Who may join: open, ticket or list
    #[arg(long, value_name = "MODE")]
    pub admission: Option<String>,
    /// A node that a list admits beside this machine's (64 hex digits); may be repeated
    #[arg(long, value_name = "ID")]
    pub allow: Vec<String>,
    /// The only node that may invite, revoke and change the run (64 hex digits); left out with tickets: this machine's
    #[arg(long, value_name = "ID")]
    pub creator: Option<String>,
    /// Folder for this machine's node, if it is not the default one of the run
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Run file: is there memory and disk for a node of it?
    #[arg(long, value_name = "RUN.toml")]
    pub run: Option<PathBuf>,
    /// Node file: settings of this machine (flags win over it)
    #[arg(long, value_name = "NODE.toml")]
    pub config: Option<PathBuf>,
    /// A well-known peer, or a file that lists some: does each answer, and does it reach this machine? May be repeated
    #[arg(long, value_name = "ADDR|FILE")]
    pub bootstrap: Vec<String>,
    /// Ticket, or a file that holds one: is it whole, and do its nodes answer?
    #[arg(long, value_name = "TICKET")]
    pub join: Option<String>,
    /// Folder for the node's identity and state
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
    /// Address to listen on; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<String>,
    /// auto, cpu, wgpu[:n] or cuda[:n]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Run file: what all nodes of the run share
    #[arg(long, value_name = "RUN.toml", required_unless_present_any = ["join", "home"])]
    pub run: Option<PathBuf>,
    /// Node file: settings of this machine (flags win over it)
    #[arg(long, value_name = "NODE.toml")]
    pub config: Option<PathBuf>,
    /// A well-known peer, or a file that lists some; may be repeated
    #[arg(long, value_name = "ADDR|FILE")]
    pub bootstrap: Vec<String>,
    /// Ticket from `starling invite`, a file that holds one, or `-` for standard input: all that a second machine needs
    #[arg(long, value_name = "TICKET|FILE|-")]
    pub join: Option<String>,
    /// Found a new flock even though bootstrap peers are given
    #[arg(long, conflicts_with = "join")]
    pub init: bool,
    #[arg(long, hide = true)]
    pub found: bool,
    /// Begin a new run from a trained model: the folder of a checkpoint, of a node (its newest state), or of an export
    #[arg(long, value_name = "CHECKPOINT", requires = "run", conflicts_with_all = ["join", "force_lineage"])]
    pub from: Option<PathBuf>,
    /// Go on alone, as a new lineage, from the state on this disk, even if other nodes are there: when the quorum is
    /// lost for good
    #[arg(long, conflicts_with_all = ["join", "init"])]
    pub force_lineage: bool,
    /// Follow this lineage and no other, even if it has no record in common with this disk (64 hex digits)
    #[arg(long, value_name = "ID", conflicts_with_all = ["init", "force_lineage"])]
    pub adopt_lineage: Option<String>,
    /// Folder for this node's identity and state; without --run and --join the node starts again as it did last
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
    /// Folder for tokenized text, shared by the nodes of this machine
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Address to listen on; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<String>,
    /// Address that others can reach this node at; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub advertise: Vec<String>,
    /// Text to train on: file, folder or glob; may be repeated; replaces data.sources
    #[arg(long, value_name = "PATH")]
    pub data: Vec<String>,
    /// auto, cpu, wgpu[:n] or cuda[:n]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// CPU threads for training; 0 = all cores
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Do not look for peers on the local network
    #[arg(long)]
    pub no_mdns: bool,
    /// Address for Prometheus metrics; `off` for none
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<String>,
    /// Log filter: error, warn, info, debug, or per module
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// One JSON object per line on standard output for each event
    #[arg(long)]
    pub json: bool,
    /// Print the effective configuration and exit
    #[arg(long)]
    pub print_config: bool,
    /// With `wait`, in a run whose task is external: wait for a trainer that is started elsewhere, as in a notebook
    #[arg(long, value_name = "wait", value_parser = ["wait"], conflicts_with = "command")]
    pub trainer: Option<String>,
    /// The trainer of a run whose task is external: a command that the node runs, and starts again when it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Measure the protocol, not a model: steps take this many milliseconds and change nothing much
    #[arg(long, value_name = "MS", hide = true)]
    pub null_trainer: Option<u64>,
    /// The same: its device fails in the step after so many
    #[arg(long, value_name = "STEPS", hide = true, requires = "null_trainer")]
    pub null_fails_after: Option<u64>,
}

/// The flags that name a node of this machine.
#[derive(Debug, Args)]
pub struct HomeArgs {
    /// Run file of the node
    #[arg(long, value_name = "RUN.toml", required_unless_present = "home")]
    pub run: Option<PathBuf>,
    /// The node's folder, if it is not the default one of the run
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct InviteArgs {
    #[command(flatten)]
    pub node: HomeArgs,
    /// Last round in which the ticket admits somebody; 0 = no end (runs with admission.mode = "ticket" only)
    #[arg(long, value_name = "ROUND", default_value_t = 0)]
    pub expires: u64,
    /// How many nodes it admits; 0 = any number (the same)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub uses: u32,
    /// The only node that it admits (64 hex digits; the same)
    #[arg(long, value_name = "ID")]
    pub holder: Option<String>,
    /// Show the ticket as a QR code, too
    #[arg(long)]
    pub qr: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("subject").required(true).args(["id", "ticket"])))]
pub struct RevokeArgs {
    #[command(flatten)]
    pub node: HomeArgs,
    /// The node that is to be shut out (64 hex digits)
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// The ticket that is to admit nobody any more, as `starling invite` printed it, a file that holds it, or `-`;
    /// nodes that it has admitted stay
    #[arg(long, value_name = "TICKET|FILE|-")]
    pub ticket: Option<String>,
    /// The node that the ticket is made out to, if it was made with --holder (64 hex digits)
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    pub holder: Option<String>,
}

#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// What changes: rounds, tokens, lr, lr_final, warmup_steps, weight_decay, clip, minority, grace_s, patience_s, share
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
    /// First round that it may be in force in: `next`, or a number
    #[arg(long, value_name = "ROUND", default_value = "next")]
    pub from_round: String,
    #[command(flatten)]
    pub node: HomeArgs,
}

#[derive(Debug, Args)]
pub struct AgreeArgs {
    /// The amendment, as `starling status` shows it: at least 8 hex digits
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub node: HomeArgs,
}

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Run file of the node
    #[arg(long, value_name = "RUN.toml")]
    pub run: Option<PathBuf>,
    /// The node's folder, if it is not the default one of the run; the node must not be running
    #[arg(long, visible_alias = "data", value_name = "DIR", required_unless_present = "run")]
    pub home: Option<PathBuf>,
    /// Folder of tokenized text, from which the length of an epoch is known
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub node: OptionalHomeArgs,
    /// Print the whole answer as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the loss on held-out text in nats per byte, too
    #[arg(long, short)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub node: OptionalHomeArgs,
    /// Print the whole answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// The flags that name a node of this machine; with neither, the only one that is running.
#[derive(Debug, Args)]
pub struct OptionalHomeArgs {
    /// Run file of the node
    #[arg(long, value_name = "RUN.toml")]
    pub run: Option<PathBuf>,
    /// The node's folder
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Write a checkpoint of a node's present state, whether it is running or not
    Now(HomeArgs),
    /// List the checkpoints of a node
    List(HomeArgs),
    /// Check every byte of a checkpoint against its state root
    Verify {
        /// Checkpoint folder
        folder: PathBuf,
    },
    /// Write the model as Hugging Face's Llama (weights, config.json, tokenizer), or as its trainers have it
    Export {
        /// Checkpoint folder, or the folder of a node, running or not
        folder: PathBuf,
        /// Folder to make; a name that ends in .safetensors is a file for the weights alone
        #[arg(long, short, value_name = "PATH")]
        output: PathBuf,
        /// Replace what an earlier export has written there
        #[arg(long)]
        force: bool,
        /// `tokenizer.json` of the run, if the checkpoint has none and the run does not train on bytes
        #[arg(long, value_name = "FILE")]
        tokenizer: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ChainCommand {
    /// Write run specification, records, votes and updates as files (docs/store.md); the node must not be running
    Export {
        #[command(flatten)]
        node: HomeArgs,
        /// Folder to make
        #[arg(long, short, value_name = "DIR")]
        output: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text to go on from
    #[arg(long, default_value = "fn ")]
    pub prompt: String,
    /// Tokens to write
    #[arg(long, default_value_t = 200)]
    pub tokens: usize,
    /// 0 = always the likeliest token
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f64,
    /// Sample among this many likeliest tokens; 0 = all
    #[arg(long, default_value_t = 40)]
    pub top_k: usize,
    /// Seed of the sampling
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// `tokenizer.json` of the run, for runs that do not train on bytes
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// auto, cpu, wgpu[:n] or cuda[:n]
    #[arg(long, default_value = "cpu")]
    pub device: String,
}

#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Files, folders or globs, as data.sources in a run file takes them
    #[arg(required = true, value_name = "TEXT")]
    pub text: Vec<String>,
    /// Field of a .jsonl line that holds the text
    #[arg(long, default_value = "text")]
    pub field: String,
    /// Bytes of text to read at most
    #[arg(long, value_name = "N", default_value_t = 64 << 20)]
    pub bytes_max: u64,
    /// `tokenizer.json` of the run, for runs that do not train on bytes
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// auto, cpu, wgpu[:n] or cuda[:n]
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Print, as JSON, the logits after each of the text's first so many tokens instead, to compare programs
    #[arg(long, value_name = "N", hide = true)]
    pub logits: Option<usize>,
}
