"""The part that all trainers share: doing what the node asks until it asks for a step, and dealing out the samples."""

import logging
import math

import numpy as np

from .errors import FlockError, Refused
from .wire import field

log = logging.getLogger("starling_flock")

TEXT_MAX = 4000


class Lease:
    """The samples of the next steps, of which some steps are done."""

    def __init__(self, numbers, unit):
        self.numbers, self.unit, self.done = numbers, unit, 0

    def rest(self):
        """The samples of the steps that are not done."""
        return self.numbers[self.done * self.unit :]


class Sampler:
    """Draws the samples of the lease at hand, for a DataLoader. One pass is one lease, and ends with it."""

    def __init__(self, loop):
        self.loop = loop

    def __iter__(self):
        if self.loop._await():
            self.loop._drawn = 0
            self.loop._sampled = self.loop._lease
            yield from self.loop._numbers().tolist()

    def __len__(self):
        lease = self.loop._lease if self.loop._await() else None
        return 0 if lease is None or lease.numbers is None else len(lease.rest())


class Loop:
    """A trainer without its tensors, which `Flock` and `Client` add.

    It has no thread. The node asks only while the user's code is in one of these methods: `step` answers that a step is
    done, and does what the node asks (load, read, validate, save) until the next step is to be done.
    """

    def __init__(self, samples, evaluate=None, stay=False):
        self._samples = samples
        self.evaluate = evaluate
        self.stay = stay
        self.sampler = Sampler(self)
        self.likely = None
        # The result of `_link`, once somebody needs it.
        self._linked = None
        self._lease = None
        # The lease of which the sampler gave samples last.
        self._sampled = None
        # The step that is to be done, and the samples drawn for it.
        self._pending = None
        self._drawn = 0
        self._counted = False
        # The last of these asks.
        self._load_ask, self._step_ask, self._end = {}, {}, None
        self._welcome = None
        self._serving = False
        self._epoch, self._position, self._order = 0, 0, None

    # What the user sees.

    @property
    def flying(self):
        """Members that take part in the round; 0 once the run is over. Waits for the first step."""
        return self._glance(lambda: max(self._load_ask.get("flying", 1), 1) if self._end is None else 0)

    @property
    def lr(self):
        """The learning rate of the step at hand, by the run's schedule."""
        return self._glance(lambda: self._step_ask.get("lr", 0.0))

    @property
    def progress(self):
        """The part of the run's budget that is used, from 0 to 1; 0 without a budget."""
        return self._glance(lambda: self._step_ask.get("progress", 0.0))

    @property
    def tokens(self):
        """The weight of all samples that the run has counted."""
        return self._glance(lambda: self._step_ask.get("tokens", 0))

    @property
    def round(self):
        return self._glance(lambda: self._load_ask.get("round", 0))

    @property
    def unit(self):
        """Samples of one step in this process."""
        return self._glance(lambda: self._share(self._welcome["unit"]) if self._welcome else 0)

    @property
    def why(self):
        """Why the run is over, in the node's words; none while it is not."""
        return None if self._end is None else self._end.get("text", "")

    def draw(self, count):
        """The numbers of the next samples of the step at hand, for scripts that draw their batches at random."""
        if not self._await():
            raise FlockError("the run is over: end the loop when flock.flying is 0")
        self._take(count)
        at = self._drawn - count
        return self._numbers()[at : at + count]

    def batches(self, loader):
        """The batches of a loader that draws from `flock.sampler`, lease after lease, until the run is over.

        Batches of a lease that the node took back are dropped.
        """
        size = getattr(loader, "batch_size", None)
        while self._await():
            lease, at = self._lease, 0
            for batch in loader:
                if not self._await():
                    return
                if not self._private:
                    self._check_source(lease)
                    if size is not None:
                        # The last batch of a lease may be smaller.
                        self._take(min(size, max(len(lease.numbers) - at, 1)))
                        at += size
                yield batch
                if self._lease is not lease and not self._free:
                    break
            if self._lease is lease and self._pending is not None and not self._private:
                raise FlockError(
                    "the lease's samples are used up, and the node waits for a step: call flock.step after each step"
                )

    def step(self, loss, weight=None, samples=None):
        """Tells the node that a step is done, with its mean loss, and waits for the next. Returns whether there is one.

        Call it once for each step of the optimizer, also for one that a GradScaler left out. `weight` is what the step
        counts, if samples do not count alike; `samples` is how many it used, if the package cannot know.
        """
        if self._end is not None:
            return False
        if self._pending is None:
            raise FlockError(
                "the node has not asked for a step yet: begin the loop with flock.batches, flock.draw or flock.flying"
            )
        unit = self._share(self._welcome["unit"])
        used = samples if samples is not None else self._drawn if self._counted else unit
        if used != unit:
            text = (
                f"this step used {used} samples; each step of the run uses {unit}: set batch size or micro-batches so"
            )
            self._linked.answer(error=text)
            self._linked.close()
            raise FlockError(text)
        self._pending, self._drawn, self._counted = None, 0, False
        self._lease.done += 1
        loss, weight = self._total(loss, unit if weight is None else weight)
        self._linked.answer(loss=loss if math.isfinite(loss) else None, samples=self._welcome["unit"], weight=weight)
        return self._await()

    def alive(self):
        """Tells the node during a long step that this trainer is at work. The node then waits up to an hour."""
        if self._linked is not None:
            self._linked.say("alive")

    def say(self, text):
        """Shows a line in the node's log; at most one a second."""
        if self._linked is not None:
            self._linked.say("log", text=shortened(text))

    def close(self):
        """Leaves the node. Its round goes on without this trainer."""
        if self._linked is not None:
            self._linked.close()

    # What trainers add.

    def _link(self):
        """Makes the connection; called once, when the first ask is awaited."""
        raise NotImplementedError

    def _share(self, samples):
        """How many of a step's samples this process uses."""
        return samples

    def _own(self, numbers):
        """Those of a lease's samples that this process uses."""
        return numbers

    def _total(self, loss, weight):
        """Loss and weight of a step over all processes."""
        return float(loss), int(weight)

    # What the node asks.

    @property
    def _private(self):
        return bool(self._welcome and self._welcome["private"])

    @property
    def _free(self):
        """Whether a pass of the loader goes on into the next lease: the loader reads data of its own."""
        return self._private and self._sampled is None

    def _glance(self, value):
        """A value that is known once a step is to be done."""
        if not self._serving:
            self._await()
        return value()

    def _await(self):
        """Does what the node asks until a step is to be done; false if the run is over."""
        if self._serving:
            raise FlockError(
                "the flock's samples are for training: evaluate= and the other functions must not draw or step"
            )
        if self._linked is None:
            self._linked = self._link()
        while self._pending is None and self._end is None:
            ask = self._linked.ask()
            self._serving = True
            try:
                self._do(ask)
            finally:
                self._serving = False
        return self._end is None

    def _do(self, ask):
        name = ask["ask"]
        try:
            do = getattr(self, f"_do_{name}", None)
            if do is None:
                raise FlockError(
                    f"the node asks for {name!r}, which this package does not know: use one of the node's release"
                )
            answer = do(ask)
        except BaseException as e:
            self._linked.answer(error=shortened(f"{type(e).__name__}: {e}"))
            self._linked.close()
            raise
        if answer is not None:
            self._linked.answer(**answer)
        if self._end is not None:
            self._linked.close()

    def _do_welcome(self, ask):
        first = self._welcome is None
        self._welcome = ask
        self._share(field(ask, "unit", int))
        self._forget_lease()
        self._place()
        if first and ask.get("saved"):
            try:
                self._restore(ask["saved"])
            except Exception as e:  # Private state is never needed, and a file of it may be damaged.
                log.warning("the optimizer begins anew: %s cannot be read (%s)", ask["saved"], e)
        return None

    def _do_load(self, ask):
        self._load_ask = ask
        if not ask.get("keep"):
            self._forget_lease()
        self._load()
        return {}

    def _do_lease(self, ask):
        if ask.get("likely"):
            self.likely = self._own(ask["numbers"]) if "numbers" in ask else None
            return {}
        numbers = ask["numbers"] if "numbers" in ask else self._own_numbers(ask["samples"])
        numbers = None if numbers is None else self._own(numbers)
        self._lease = Lease(numbers, self._share(self._welcome["unit"]))
        self.likely = None
        return {}

    def _do_step(self, ask):
        if self._lease is None:
            raise FlockError("the node asks for a step without a lease: it is not a node of this version")
        self._pending = self._step_ask = ask
        self._drawn = 0

    def _do_read(self, ask):
        self._read()
        return {}

    def _do_evaluate(self, ask):
        result = None if self.evaluate is None else self._validate()
        loss, weight = result if isinstance(result, tuple) else (result, 1)
        loss = None if loss is None else float(loss)
        return {"loss": loss if loss is not None and math.isfinite(loss) else None, "weight": int(weight)}

    def _do_save(self, ask):
        self._save(ask["folder"])
        return {}

    def _do_end(self, ask):
        if ask.get("why") == "refused":
            self._linked.answer()
            self._linked.close()
            raise Refused("end", ask.get("text", ""))
        if ask.get("why") == "left" and self.stay:
            self._linked.answer()
            self._linked.close()
            return None
        log.info("the node ended: %s", ask.get("text", ""))
        self._end = ask
        return {}

    # Samples.

    def _forget_lease(self):
        self._lease, self._pending, self._drawn, self._counted = None, None, 0, False

    def _check_source(self, lease):
        if self._sampled is not lease:
            raise FlockError("the loader does not draw from the flock: make it with sampler=flock.sampler")

    def _numbers(self):
        """The samples of the steps that are to be done."""
        if self._lease.numbers is None:
            raise FlockError(
                "the data of this node have no numbers, as samples=0 says: read them without sampler and draw"
            )
        return self._lease.rest()

    def _take(self, count):
        """Notes that the step at hand uses so many samples more."""
        unit = self._lease.unit
        if self._drawn + count > unit:
            raise FlockError(
                f"this step drew {self._drawn} samples and draws {count} more; each step of the run uses {unit}: draw "
                f"that many for it, and call flock.step after each step"
            )
        self._drawn += count
        self._counted = True

    def _own_numbers(self, count):
        """The next samples of this node's own data, in a random order of each epoch."""
        samples = self._samples
        if not samples:
            return None
        parts = []
        while count > 0:
            if self._order is None:
                seed = [int(self._welcome["node"][:16] or "0", 16), self._epoch]
                self._order = np.random.default_rng(seed).permutation(samples)
            part = self._order[self._position : self._position + count]
            self._position, count = self._position + len(part), count - len(part)
            parts.append(part)
            if self._position >= samples:
                self._epoch, self._position, self._order = self._epoch + 1, 0, None
        return np.concatenate(parts)


def shortened(text):
    return text.encode()[:TEXT_MAX].decode(errors="ignore")
