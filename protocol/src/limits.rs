//! Named limits on everything that arrives from outside.
//!
//! A decoder checks a length, count or index against one of these before it allocates anything.

/// Version of the wire protocol. Part of every stream protocol's name, of every envelope and of `Hello`.
pub const PROTOCOL_VERSION: u16 = 9;

/// Members whose READYs a node asks a neighbour for at a time.
pub const WANTED_MAX: usize = 64;

/// Members of one flock, voters and learners.
pub const MEMBERS_MAX: usize = 1024;
/// Voters of one flock. In a larger flock the others are learners, which contribute and follow.
pub const VOTERS_MAX: usize = 31;
/// Members of a row of the flock's grid: with so many more members there is another row.
pub const ROW_MEMBERS: usize = 32;
/// The least members of a row: all voters have a place in the first.
pub const ROW_MEMBERS_LEAST: usize = VOTERS_MAX;
/// Bytes of a set of members: one bit for each member of a record.
pub const SET_BYTES_MAX: usize = MEMBERS_MAX / 8;
/// Statements about other nodes (joins, suspicions) in one READY.
pub const STATEMENTS_MAX: usize = 8;
/// Peers whose round-trip time one READY states.
pub const RTTS_MAX: usize = 64;
/// Members whose order in the reduction's ring a record states.
pub const TOUR_MAX: usize = 64;
/// Bytes of an encoded amendment.
pub const AMENDMENT_BYTES_MAX: usize = 192;
/// Amendments that a node knows and no record holds yet.
pub const PROPOSALS_MAX: usize = 8;
/// Bytes of a signed READY: 384, 80 for each statement, 4 for each measured peer, and an amendment.
pub const READY_BYTES_MAX: usize = 384 + 80 * STATEMENTS_MAX + 4 * RTTS_MAX + AMENDMENT_BYTES_MAX;
/// Bytes of an encoded candidate: its record and the READYs from which the record follows.
pub const CANDIDATE_BYTES_MAX: usize = RECORD_BYTES_MAX + MEMBERS_MAX * (READY_BYTES_MAX + 8) + 256;
/// Bytes of one signed vote inside a certificate, or of a Fork: 224, and its set.
pub const VOTE_BYTES_MAX: usize = 224 + SET_BYTES_MAX;
/// Bytes of one of the two signed statements that contradict each other: a READY is the longest of them.
pub const STATEMENT_BYTES_MAX: usize = READY_BYTES_MAX;
/// Nodes against which one node holds evidence.
pub const EVIDENCE_MAX: usize = 64;
/// Ranges of positions that wait to be leased again; beyond this number the shortest are given up.
pub const FREE_SPANS_MAX: usize = 64;
/// Tickets whose uses a lineage counts, and also identities and tickets that it has revoked.
pub const GRANTS_MAX: usize = 512;
/// Lineages whose difference a lineage has taken in.
pub const MERGED_MAX: usize = 64;
/// Bytes of an encoded admission ticket.
pub const TICKET_BYTES_MAX: usize = 256;
/// Identities that a run's allow-list names.
pub const ALLOWED_MAX: usize = 64;
/// Rounds of probation in an open run.
pub const PROBATION_MAX: u32 = 4096;
/// Milliseconds that rounds may wait for newcomers at once.
pub const JOIN_PATIENCE_MAX: u32 = 3_600_000;
/// Per cent of a run's time that rounds may wait for newcomers in the long run.
pub const JOIN_SHARE_MAX: u32 = 50;
/// Bytes of one control message, envelope included.
pub const CONTROL_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an encoded `RunSpec`.
pub const RUN_SPEC_BYTES_MAX: usize = 4 * 1024;
/// Bytes of an encoded record.
pub const RECORD_BYTES_MAX: usize = 256 * 1024;
/// Characters of a run's name.
pub const RUN_NAME_CHARS_MAX: usize = 64;
/// Entries of the outer learning rates' table: one for each possible count of contributors.
pub const OUTER_LR_ENTRIES_MAX: usize = 64;
/// Parameters of a model.
pub const PARAMETERS_MAX: u64 = 1 << 36;
/// Tensors of an external task, bytes of their names, their dimensions, and bytes of all in one document.
pub const TENSORS_MAX: usize = 16 * 1024;
pub const TENSOR_NAME_BYTES_MAX: usize = 255;
pub const TENSOR_DIMENSIONS_MAX: usize = 8;
pub const SCHEMA_BYTES_MAX: usize = 1 << 20;
/// Training samples of an external task.
pub const TASK_SAMPLES_MAX: u64 = 1 << 48;
/// Samples that one member may be leased in one round of an external task: its trainer gets their numbers in memory.
pub const LEASE_SAMPLES_MAX: u64 = 1 << 22;
/// Inner steps of one round: a round that long would take days.
pub const INNER_STEPS_MAX: u32 = 1 << 20;
/// Fragments of a run, and inner steps that may overlap the making of a record. Beyond five such steps the published
/// loss rises (Streaming DiLoCo, arXiv 2501.18512, section 3.3).
pub const FRAGMENTS_MAX: u32 = 64;
pub const OVERLAP_MAX: u32 = 5;
/// Sequences that one member may be leased in one round; keeps a cursor below 2^64 for 2^16 rounds of a full flock.
pub const SAMPLES_MAX: u64 = 1 << 42;

/// Links of a path in one answer, and their bytes: enough for a flock whose voters have all been replaced some dozen
/// times.
pub const PATH_LINKS_MAX: usize = 256;
pub const PATH_BYTES_MAX: usize = 1 << 20;
/// Records by which a node that asks for a path tells what it holds.
pub const LOCATOR_MAX: usize = 64;

/// Elements of one chunk of an update: the unit of coding, framing and pipelining. A multiple of every codec's block.
pub const CHUNK_ELEMENTS: usize = 32 * 1024;
/// Bytes of the sum of one row over a chunk: an f32 for each element.
pub const ROW_SUM_BYTES_MAX: usize = 4 * CHUNK_ELEMENTS;
/// The most entries that top-k keeps of each 4096 values. With twice as many, int4 is as short and loses less.
pub const TOPK_K_MAX: u16 = 1024;
/// The least number of times, on average, that top-k must be able to send each value over a run. With fewer, values
/// that wait in the error feedback are out of date when they are sent, and the run is badly under-trained.
pub const TOPK_TURNS_MIN: u64 = 20;
/// Bytes of one chunk of the canonical state (`docs/protocol/2-records.md` §2.8.3).
pub const STATE_CHUNK_BYTES: usize = 1 << 20;

const _: () = {
    // The largest record: fixed fields, then a full flock of contributors and members.
    let lists = FREE_SPANS_MAX * 16 + TOUR_MAX * 2 + MERGED_MAX * 32 + GRANTS_MAX * (36 + 32);
    assert!(1024 + lists + 2 * AMENDMENT_BYTES_MAX + MEMBERS_MAX * (112 + 75) <= RECORD_BYTES_MAX);
    // The largest control messages: a run specification, and a certificate; evidence is smaller.
    assert!(256 + RUN_SPEC_BYTES_MAX <= CONTROL_BYTES_MAX);
    assert!(512 + VOTERS_MAX * (8 + VOTE_BYTES_MAX) <= CONTROL_BYTES_MAX);
    assert!(512 + 2 * STATEMENT_BYTES_MAX <= CONTROL_BYTES_MAX);
    // The largest run specification: fixed fields, name, table of learning rates, allow-list.
    assert!(512 + RUN_NAME_CHARS_MAX + OUTER_LR_ENTRIES_MAX * 12 + ALLOWED_MAX * 32 <= RUN_SPEC_BYTES_MAX);
};
