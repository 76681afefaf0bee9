//! Tests of the store from outside, in one program, because each program links RocksDB.

mod beginning;
mod bound;
mod chain;
mod checkpoint;
mod copies;
mod damage;
mod disk_full;
mod kill;
mod pieces;
mod private;
mod recordings;
mod sequences;
mod snapshots;
mod sparse;
mod support;
mod writing;
