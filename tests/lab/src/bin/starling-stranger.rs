//! `starling-stranger`: connects to nodes without being a node, for the lab's scenarios.

use clap::Parser;
use starling_lab::stranger::{Request, flood};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    flood(Request::parse()).await
}
