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
/// Parameters of a model.
pub const PARAMETERS_MAX: u64 = 1 << 36;

/// Elements of one chunk of an update: the unit of coding, framing and pipelining. A multiple of every codec's block.
pub const CHUNK_ELEMENTS: usize = 32 * 1024;
/// Bytes of one chunk of the canonical state (`protocol.md` §3).
pub const STATE_CHUNK_BYTES: usize = 1 << 20;
