//! Answers of an engine to strangers, liars and garbage.

mod admission;
mod amendments;
mod apart;
mod bench;
mod certificates;
#[cfg(feature = "sim")]
mod crossing;
mod disputes;
mod ended;
mod evidence;
mod fixture;
mod garbage;
mod identity;
#[cfg(all(feature = "mutations", feature = "sim"))]
mod injected;
mod learners;
mod lineages;
mod merging;
mod newcomers;
mod nonsense;
mod outsiders;
mod refusing;
#[cfg(feature = "sim")]
mod relays;
mod restart;
mod stalling;
mod strangers;
mod streaming;
mod threats;
mod two;
mod watch;
