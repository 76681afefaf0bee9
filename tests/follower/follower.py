"""Follows a recorded run from its first record to its last (docs/protocol/README.md, *Parts of an implementation*).

A recording is a folder that `starling chain export` writes (docs/store.md, *Recordings*). Each step trusts the previous
record, and refuses the next one at the first rule that does not hold.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from collections.abc import Mapping

from amendments import check_amended, in_force
from records import COMMIT, GENESIS, KINDS, Link, audit, check_after, check_steps, read_record
from specification import LIST, TICKET, RunSpec, read_spec
from state import STATE_CHUNK, State, initial_state, read_manifest, root_of, state_of, step
from votes import check_certificate
from wire import Fault, demand, digest


class Refused(Exception):
    """The place at which a recording breaks a rule: the files that the rule compares, and the fault."""

    def __init__(self, names: list[str], fault: Fault) -> None:
        super().__init__(f"{' or '.join(names)}: {fault}")
        self.names, self.fault = names, fault


@dataclass(frozen=True)
class Recording:
    """The files of a recording by name. Bytes in `instead` stand for those on disk."""

    folder: Path
    names: frozenset[str]
    instead: Mapping[str, bytes] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, folder: Path) -> "Recording":
        return cls(folder, frozenset(path.name for path in folder.iterdir()))

    def read(self, name: str) -> bytes:
        """The bytes of a file; a missing file is refused."""
        self.used.add(name)
        if name in self.instead:
            return self.instead[name]
        if name not in self.names:
            raise Refused([name], Fault("README", "it is missing"))
        return (self.folder / name).read_bytes()

    @property
    def snapshot(self) -> str | None:
        """The manifest of the first state, which a recording from a genesis lacks."""
        return next((name for name in self.names if name.endswith(".manifest")), None)

    def numbers(self) -> list[int]:
        """The numbers of the records."""
        stems = [name.removesuffix(".record") for name in self.names if name.endswith(".record")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())


def name_of(seq: int, kind: str) -> str:
    """The name of a file of a record."""
    return f"{seq:010}.{kind}"


@dataclass
class Follower:
    """The verified head and state. A copy goes on by itself: no part is changed in place except `seen`."""

    spec: RunSpec
    run: bytes
    head: Link
    # None before the first state of a recording whose earliest updates are gone.
    state: State | None
    seen: Counter[str]

    @classmethod
    def begin(cls, files: Recording) -> "Follower":
        """Begins with the specification and the first record, which it trusts."""
        with Named("spec"):
            spec, run = read_spec(files.read("spec"))
        first = min(files.numbers(), default=0)
        name = name_of(first, "record")
        with Named(name, "spec"):
            head = read_record(files.read(name))
            demand(head.record.run == run, "§2.2.1", "the record is of another run")
            demand(head.record.seq == first, "§2.2.1", "the record has another number than its file")
            if head.record.kind == GENESIS:
                check_genesis(spec, head)
        follower = cls(spec, run, head, None, Counter({KINDS[head.record.kind]: 1}))
        follower.take_state(files)
        return follower

    def copy(self) -> "Follower":
        """A follower that goes on from here by itself."""
        return Follower(self.spec, self.run, self.head, self.state, self.seen.copy())

    def advance_to(self, seq: int, files: Recording) -> None:
        """Verifies the records up to this one, and makes it the head."""
        while self.head.record.seq < seq:
            self.advance(files)

    def advance(self, files: Recording) -> None:
        """Verifies the next record, and makes it the head."""
        parent, seq = self.head, self.head.record.seq + 1
        name, before, votes = name_of(seq, "record"), name_of(seq - 1, "record"), name_of(seq, "certificate")
        with Named(name):
            link = read_record(files.read(name))
        with Named(name, before):
            demand(link.record.parent == parent.digest, "§2.2.5 rule 1", "`parent` is not the digest of the record before")
        with Named(name):
            check_after(parent, link.record)
            audit(parent.record, link.record)
        with Named(name, "spec"):
            check_steps(self.spec, parent.record, link.record)
        with Named(votes, name):
            self.seen["signatures"] += check_certificate(self.spec, parent, link, files.read(votes))
        with Named(name, "spec"):
            check_amended(self.spec, self.run, link.record.amended, link.record.next.settings)
        if self.state is not None and link.record.kind == COMMIT:
            self.apply(files, parent, link)
        self.head = link
        self.seen[KINDS[link.record.kind]] += 1
        self.take_state(files)

    def apply(self, files: Recording, parent: Link, link: Link) -> None:
        """Steps the state by the update of a COMMIT."""
        record, name = link.record, name_of(link.record.seq, "update")
        update = files.read(name)
        assert self.state is not None
        with Named(name):
            demand(digest("starling update v1", update) == record.update, "§1.1.1", "it has not the record's digest")
            terms = in_force(self.spec, parent.record.next.settings)
            self.state = step(terms, parent.record, record, update, self.state)
        with Named(name, name_of(record.seq, "record")):
            demand(self.state.root() == record.state_root, "§2.8.3", "the state after it has another root than the record's")
        self.seen["updates"] += 1
        self.seen["state roots"] += 1

    def take_state(self, files: Recording) -> None:
        """Reads the first state: that of the recording's snapshot, or without one that of the genesis."""
        record, manifest = self.head.record, name_of(self.head.record.seq, "manifest")
        if manifest in files.names:
            self.state = self.load(files, manifest)
        elif record.kind == GENESIS and self.spec.beginning:
            # The weights are in no recording that begins with a later state.
            demand(files.snapshot is not None, "§2.8.6", "the state that the run begins with is missing")
            return
        elif record.kind == GENESIS:
            with Named(name_of(record.seq, "record")):
                state = initial_state(self.spec)
                demand(state.root() == record.state_root, "§2.8.5", "its state root is not that of the initial parameters")
            self.state = None if files.snapshot else state
        else:
            return
        self.seen["state roots"] += 1

    def load(self, files: Recording, manifest: str) -> State:
        """The snapshot of the head."""
        seq, parameters = self.head.record.seq, self.spec.parameters
        with Named(manifest):
            schema, digests = read_manifest(self.spec, files.read(manifest))
            per_vector = -(-parameters // STATE_CHUNK)
            root = root_of(digests, schema, parameters, len(digests) // per_vector)
        with Named(manifest, name_of(seq, "record")):
            demand(root == self.head.record.state_root, "§2.8.4", "its root is not the record's state root")
        chunks = []
        for index, expected in enumerate(digests):
            name = name_of(seq, f"chunk-{index:06}")
            chunk = files.read(name)
            with Named(name):
                size = min(STATE_CHUNK, parameters - index % per_vector * STATE_CHUNK)
                demand(len(chunk) == 4 * size, "§2.8.3", "the chunk has another length than its place in the state")
                demand(digest("starling state chunk v1", chunk) == expected, "§1.1.1", "it has not the manifest's digest")
            chunks.append(chunk)
        return state_of(self.spec, schema, chunks)


def check_genesis(spec: RunSpec, genesis: Link) -> None:
    """Checks that the run's mode allows each member, that is, the founder (§6.2.3)."""
    ids, admission = [m.id for m in genesis.record.next.members], spec.admission
    allowed = {LIST: admission.allow, TICKET: (spec.creator,)}.get(admission.mode, ids)
    demand(all(founder in allowed for founder in ids), "§6.2.3", "the founder is not one that the run allows")
    demand(genesis.record.next.inner_steps == spec.inner.steps, "§6.2.3", "its inner steps are not the run's")
    begun = spec.beginning in (None, genesis.record.state_root)
    demand(begun, "§6.2.3", "its state is not the one that the run begins with")


class Named:
    """Adds to a fault the files that the rule compares."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, wrong: BaseException | None, trace: object) -> None:
        if isinstance(wrong, Fault):
            raise Refused(self.names, wrong) from wrong


def follow(files: Recording) -> Follower:
    """Verifies a whole recording: every record to the last, and that there is no other file."""
    follower = Follower.begin(files)
    follower.advance_to(max(files.numbers()), files)
    if follower.state is None:
        raise Refused([f"the snapshot {files.snapshot}"], Fault("§2.8.4", "it is not of a record here"))
    for name in sorted(files.names - files.used):
        raise Refused([name], Fault("README", "nothing leads to this file"))
    return follower
