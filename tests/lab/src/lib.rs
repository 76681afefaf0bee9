//! A WAN in a box: real Starling nodes behind an emulated network, with faults, checks of their events, and a report.

pub mod bench;
pub mod bounds;
pub mod check;
pub mod compare;
pub mod costs;
pub mod history;
pub mod measure;
pub mod network;
pub mod report;
pub mod rows;
pub mod run;
pub mod scenario;
pub mod stage;
pub mod steps;
pub mod stranger;
pub mod sweep;
pub mod verdict;
pub mod waits;
