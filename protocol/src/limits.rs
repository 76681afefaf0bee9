//! Named limits on everything that arrives from outside.
//!
//! A decoder checks a length, count or index against one of these before it allocates anything.

/// Version of the wire protocol. Part of every stream protocol's name, of `Hello` and of every signature.
pub const PROTOCOL_VERSION: u16 = 1;

/// Members of one flock. Later versions add a voter committee; see `protocol.md` §7.
pub const MEMBERS_MAX: usize = 64;
/// Bytes of one control message, envelope included.
pub const CONTROL_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an encoded `RunSpec`.
pub const RUN_SPEC_BYTES_MAX: usize = 4 * 1024;
/// Bytes of an encoded record.
pub const RECORD_BYTES_MAX: usize = 16 * 1024;
/// Characters of a run's name.
pub const RUN_NAME_CHARS_MAX: usize = 64;
/// Entries of the outer learning rates' table: one for each possible count of contributors.
pub const OUTER_LR_ENTRIES_MAX: usize = MEMBERS_MAX;
/// Parameters of a model.
pub const PARAMETERS_MAX: u64 = 1 << 36;
/// Inner steps of one round: a round that long would take days.
pub const INNER_STEPS_MAX: u32 = 1 << 20;
/// Sequences that one member may be leased in one round; keeps a cursor below 2^64 for 2^16 rounds of a full flock.
pub const SAMPLES_MAX: u64 = 1 << 42;

/// Elements of one chunk of an update: the unit of coding, framing and pipelining. A multiple of every codec's block.
pub const CHUNK_ELEMENTS: usize = 32 * 1024;
/// Bytes of one chunk of the canonical state (`protocol.md` §3).
pub const STATE_CHUNK_BYTES: usize = 1 << 20;

const _: () = {
    // The largest record: fixed fields, then a full flock of contributors and leases.
    assert!(512 + MEMBERS_MAX * (80 + 48) <= RECORD_BYTES_MAX);
    // The largest control messages: a run specification, and two lists of all members.
    assert!(256 + RUN_SPEC_BYTES_MAX <= CONTROL_BYTES_MAX);
    assert!(512 + 2 * MEMBERS_MAX * 32 <= CONTROL_BYTES_MAX);
    // The largest run specification: fixed fields, name, table of learning rates.
    assert!(512 + RUN_NAME_CHARS_MAX + OUTER_LR_ENTRIES_MAX * 12 <= RUN_SPEC_BYTES_MAX);
};
