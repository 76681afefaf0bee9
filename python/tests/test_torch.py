"""PyTorch models: what of them is averaged, and how their tensors come from and go to the node."""

import copy
import gc
import math
import os
import tempfile
import unittest

import numpy as np

from mock_node import played

try:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    from starling_flock import Flock, FlockError
    from starling_flock.tensors import Tensors, digest_of
except ImportError as e:
    raise unittest.SkipTest(f"PyTorch is not installed ({e})")


def names(session, kind=None):
    return [t["name"] for t in session.tensors if kind in (None, t["kind"])]


def part(session, vector, name):
    """A tensor's values in the vector of a run."""
    at = 0
    for tensor in session.tensors:
        count = math.prod(tensor["shape"])
        if tensor["name"] == name:
            return vector[at : at + count].reshape(tensor["shape"])
        at += count
    raise KeyError(name)


def linear(**options):
    torch.manual_seed(1)
    return nn.Linear(3, 2, **options)


def flat(model):
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).numpy().copy()


class Numbers(Dataset):
    """Samples that are their own numbers."""

    def __len__(self):
        return 1000

    def __getitem__(self, n):
        return torch.tensor([n, n, n], dtype=torch.float32) / 1000


def train(flock, model, optimizer, batches, seen=None):
    for batch in batches:
        if seen is not None:
            seen.append((batch[:, 0] * 1000).round().int().tolist())
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        flock.step(loss)


class Names(unittest.TestCase):
    def test_wrappers_prefixes_are_stripped(self):
        inner = nn.Sequential(linear(), nn.ReLU())
        want = [held.name for held in Tensors(inner).travel]
        self.assertEqual(want, ["0.weight", "0.bias"])
        compiled = torch.compile(nn.Sequential(linear(), nn.ReLU()), backend="eager")
        parallel = nn.DataParallel(nn.Sequential(linear(), nn.ReLU()))
        partly = nn.Sequential(torch.compile(linear(), backend="eager"), nn.ReLU())
        both = torch.compile(nn.DataParallel(nn.Sequential(linear(), nn.ReLU())), backend="eager")
        for model in (compiled, parallel, partly, both):
            self.assertEqual([held.name for held in Tensors(model).travel], want)

    def test_a_users_module_keeps_its_name(self):
        model = nn.ModuleDict({"module": linear()})
        self.assertEqual([held.name for held in Tensors(model).travel], ["module.weight", "module.bias"])

    def test_kinds_of_tensors(self):
        model = nn.Sequential(linear(), nn.BatchNorm1d(2))
        model[0].bias.requires_grad_(False)
        model.register_buffer("mask", torch.full((2, 2), -math.inf))
        model.register_buffer("cache", torch.zeros(2), persistent=False)
        tensors = Tensors(model)
        kinds = {held.name: held.kind for held in tensors.travel}
        self.assertEqual(
            kinds,
            {
                "0.weight": "learned", "1.weight": "learned", "1.bias": "learned", "1.running_mean": "mean", "1.running_var": "mean",
            },
        )
        self.assertEqual(list(tensors.frozen), ["0.bias"])
        self.assertEqual(sorted(tensors.local), ["1.num_batches_tracked", "mask"])
        kept = Tensors(model, local=["*.running_*"])
        self.assertEqual([held.name for held in kept.travel], ["0.weight", "1.weight", "1.bias"])
        self.assertIn("1.running_mean", kept.local)

    def test_what_no_run_can_average_is_named(self):
        with self.assertRaisesRegex(FlockError, "weight is of type complex64"):
            Tensors(nn.Linear(2, 2, dtype=torch.complex64))
        with self.assertRaisesRegex(FlockError, "nothing to train"):
            Tensors(linear().requires_grad_(False))

    def test_the_digest_of_frozen_parameters_follows_their_values(self):
        model = linear()
        first = digest_of(dict(model.named_parameters()))
        self.assertEqual(first, digest_of(dict(copy.deepcopy(model).named_parameters())))
        with torch.no_grad():
            model.bias[1] += 1e-3
        self.assertNotEqual(first, digest_of(dict(model.named_parameters())))
        half = linear().bfloat16()
        self.assertNotEqual(digest_of({"w": half.weight}), digest_of({"w": half.weight.float()}))


class Ways(unittest.TestCase):
    """Tensors between model and node."""

    def round_trip(self, model, step, theta=None, numbers=4, **options):
        """One round of one step; returns what was loaded, what was read, and the session."""
        seen = []

        def script(node):
            session = node.welcome()
            start = node.founded if theta is None else theta(session)
            losses, trained = session.round(start, np.arange(numbers))
            seen.extend([start, trained, session, losses])
            session.end()

        with played(script) as node:
            flock = Flock(model, samples=1000, node=node.home, **options)
            while flock.flying:
                flock.draw(4)
                flock.step(step(model))
        return seen

    def test_tensors_of_the_cpu_lie_in_the_memory(self):
        model = linear()
        before, kept = flat(model), model.weight
        places = []

        def step(model):
            places.append(model.weight.data_ptr())
            self.assertIs(model.weight, kept)
            with torch.no_grad():
                model.weight += 1
            return 1.0

        start, trained, session, _ = self.round_trip(model, step, numbers=8)
        np.testing.assert_array_equal(start, before)
        np.testing.assert_array_equal(part(session, trained, "weight"), part(session, start, "weight") + 1 + 1)
        self.assertEqual(places[0] % 4096, 0)
        # The memory stays while the model needs it, though the connection is closed.
        gc.collect()
        np.testing.assert_array_equal(flat(model), trained)

    def test_tensors_that_share_memory_are_copied(self):
        model = linear()
        both = torch.zeros(4, 3)
        model.weight.data = both[:2]

        def step(model):
            model.weight.data.fill_(3)
            return 1.0

        start, trained, session, _ = self.round_trip(model, step, theta=lambda session: np.arange(8))
        np.testing.assert_array_equal(part(session, trained, "weight"), np.full((2, 3), 3))
        np.testing.assert_array_equal(both[:2].numpy(), np.full((2, 3), 3))

    def test_channels_last_and_doubles_keep_their_form(self):
        model = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
        model.double()
        theta = np.arange(38, dtype=np.float32) / 7
        start, trained, _, _ = self.round_trip(model, lambda m: 1.0, theta=lambda s: theta)
        np.testing.assert_array_equal(trained, theta)
        self.assertEqual((model.weight.dtype, model.weight.is_contiguous()), (torch.float64, False))
        np.testing.assert_array_equal(model.weight.detach().contiguous().flatten().numpy(), theta[:36].astype(np.float64))

    def test_tied_embeddings_travel_once(self):
        model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
        model[1].weight = model[0].weight

        def step(model):
            model[1].weight.data.add_(1)
            return 1.0

        start, trained, session, _ = self.round_trip(model, step)
        self.assertEqual(names(session), ["0.weight"])
        np.testing.assert_array_equal(trained, start + 1)
        self.assertIs(model[1].weight, model[0].weight)

    def test_halves_offer_exact_zeros_without_steps_and_the_difference_with_them(self):
        theta = np.float32([1.0001, -2.0003, 3e-5, 100.1, 0.3, 7.7, 1 / 3, 65.43])
        for dtype in (torch.bfloat16, torch.float16):

            def script(node):
                session = node.welcome()
                session.load(theta)
                np.testing.assert_array_equal(session.read(), theta)
                np.testing.assert_array_equal(session.read(), theta)
                session.lease(np.arange(8))
                session.step(0)
                # A second read without a load goes on from what the first one left.
                np.testing.assert_allclose(session.read(), theta + 1, rtol=0.01)
                session.step(1)
                np.testing.assert_allclose(session.read(), theta + 2, rtol=0.01)
                session.end()

            model = linear().to(dtype)
            with played(script) as node:
                flock = Flock(model, samples=100, node=node.home)
                while flock.flying:
                    flock.draw(4)
                    with torch.no_grad():
                        model.weight += 1
                        model.bias += 1
                    flock.step(1.0)
            self.assertEqual(model.weight.dtype, dtype)

    def test_batch_norm_is_averaged_and_variances_are_not_negative(self):
        model = nn.Sequential(linear(), nn.BatchNorm1d(2))

        def theta(session):
            values = np.ones(session.elements, dtype=np.float32)
            part(session, values, "1.running_var")[:] = [-0.5, 0.5]
            return values

        variances = []

        def step(model):
            variances.append(model[1].running_var.tolist())
            model(torch.rand(4, 3))
            return 1.0

        start, trained, session, _ = self.round_trip(model, step, theta=theta)
        self.assertEqual(names(session, "mean"), ["1.running_mean", "1.running_var"])
        self.assertEqual(variances, [[0.0, 0.5]])
        for name in names(session, "mean"):
            self.assertFalse((part(session, trained, name) == part(session, start, name)).any(), name)
        self.assertEqual(model[1].num_batches_tracked.item(), 1)

    def test_only_adapters_of_lora_travel(self):
        class Lora(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base.requires_grad_(False)
                self.lora_A, self.lora_B = nn.Parameter(torch.randn(1, 3)), nn.Parameter(torch.zeros(2, 1))

            def forward(self, x):
                return self.base(x) + x @ self.lora_A.T @ self.lora_B.T

        model = Lora(linear())
        base = flat(model.base)

        def step(model):
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
            return loss

        start, trained, session, _ = self.round_trip(model, step)
        self.assertEqual(names(session), ["lora_A", "lora_B"])
        self.assertEqual(session.hello["frozen"], digest_of({"base.weight": model.base.weight, "base.bias": model.base.bias}))
        self.assertTrue((part(session, trained, "lora_B") != 0).all())
        np.testing.assert_array_equal(flat(model.base), base)

    def test_peft(self):
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as e:
            self.skipTest(f"peft is not installed ({e})")
        model = get_peft_model(nn.Sequential(linear(), nn.ReLU()), LoraConfig(target_modules=["0"], r=2))
        _, _, session, _ = self.round_trip(model, lambda m: m(torch.ones(4, 3)).mean().backward() or 1.0)
        self.assertEqual(
            names(session), ["base_model.model.0.lora_A.default.weight", "base_model.model.0.lora_B.default.weight"]
        )
        self.assertIsNotNone(session.hello["frozen"])


class Loops(unittest.TestCase):
    """Loops of users."""

    def play(self, script, model=None, batch_size=4, workers=0, loop=train, **options):
        model = linear() if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        with played(script, **options) as node:
            flock = Flock(model, samples=1000, node=node.home, optimizer=optimizer)
            more = {"num_workers": workers, "persistent_workers": workers > 1, "prefetch_factor": 4} if workers else {}
            loader = DataLoader(Numbers(), batch_size=batch_size, sampler=flock.sampler, **more)
            try:
                loop(flock, model, optimizer, flock.batches(loader), seen)
            finally:
                flock.close()
        return seen

    @staticmethod
    def three_rounds(node):
        """The second is cut short after two steps."""
        session = node.welcome()
        theta = node.founded
        for n, steps in enumerate([5, 2, 5]):
            losses, theta = session.round(theta, np.arange(100 * n, 100 * n + 20), n + 1, steps)
            assert all(losses)
        session.end()

    WANT = [list(range(n, n + 4)) for n in [0, 4, 8, 12, 16, 100, 104, 200, 204, 208, 212, 216]]

    def test_batches_of_a_cut_round_are_dropped(self):
        self.assertEqual(self.play(self.three_rounds), self.WANT)

    def test_workers_draw_ahead_and_do_not_wait_for_themselves(self):
        # With one worker the loader makes workers anew for each lease, with two it keeps them.
        for workers in (1, 2):
            self.assertEqual(self.play(self.three_rounds, workers=workers), self.WANT)

    def test_accumulation_is_the_users(self):
        def loop(flock, model, optimizer, batches, seen):
            for n, batch in enumerate(batches):
                seen.append((batch[:, 0] * 1000).round().int().tolist())
                loss = model(batch).square().mean() / 2
                loss.backward()
                if n % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                    flock.step(2 * loss)

        seen = self.play(self.three_rounds, batch_size=2, loop=loop)
        self.assertEqual(sum(seen, []), sum(self.WANT, []))

    def test_a_loop_that_never_steps_is_told(self):
        def loop(flock, model, optimizer, batches, seen):
            for _ in batches:
                pass

        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(20))
            with self.assertRaises(Exception):
                session.step(0)

        with self.assertRaisesRegex(FlockError, "call flock.step after each step"):
            self.play(script, loop=loop)

    def test_a_loader_without_the_sampler_is_told(self):
        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(20))
            with self.assertRaises(Exception):
                session.step(0)

        with played(script) as node:
            flock = Flock(linear(), samples=1000, node=node.home)
            with self.assertRaisesRegex(FlockError, "sampler=flock.sampler"):
                next(flock.batches(DataLoader(Numbers(), batch_size=4)))
            flock.close()

    def test_a_stream_of_private_data_needs_no_sampler(self):
        def script(node):
            session = node.welcome()
            for n in range(2):
                session.round(node.founded, np.zeros(20), n + 1)
            session.end()

        model, seen = linear(), []
        with played(script, private=True) as node:
            flock = Flock(model, samples=0, node=node.home)
            stream = ([n] for n in range(100))
            for batch in flock.batches(stream):
                seen += batch
                flock.step(1.0)
        self.assertEqual(seen, list(range(10)))

    def test_a_step_that_a_scaler_leaves_out_counts(self):
        losses = []

        def script(node):
            session = node.welcome()
            losses.extend(session.round(node.founded, np.arange(20))[0])
            session.end()

        def loop(flock, model, optimizer, batches, seen):
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            for n, batch in enumerate(batches):
                before = flat(model)
                loss = model(batch).square().mean() * (math.inf if n == 2 else 1)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                seen.append(bool((before == flat(model)).all()))
                flock.step(loss)

        seen = self.play(script, loop=loop)
        self.assertEqual(seen, [False, False, True, False, False])
        self.assertEqual([loss is None for loss in losses], seen)

    def test_compiled_models_go_on_after_a_load(self):
        plain, compiled = [], []
        for losses, wrap in ((plain, lambda m: m), (compiled, lambda m: torch.compile(m, backend="aot_eager"))):

            def script(node):
                session = node.welcome()
                theta = node.founded
                for n in range(2):
                    more, theta = session.round(theta + 1, np.arange(20), n + 1)
                    losses.extend(more)
                session.end()

            self.play(script, model=wrap(linear()))
        np.testing.assert_allclose(compiled, plain, rtol=1e-5)
        self.assertEqual(len(plain), 10)

    def test_the_validation_changes_nothing(self):
        seen = []

        def script(node):
            session = node.welcome()
            session.load(node.founded)
            seen.append(session.evaluate())
            np.testing.assert_array_equal(session.read(), node.founded)
            session.lease(np.arange(4))
            session.step(0)
            session.end()

        model = nn.Sequential(linear(), nn.BatchNorm1d(2), nn.Dropout())
        model[1].eval()

        def evaluate():
            self.assertFalse(model.training or torch.is_grad_enabled())
            return model(torch.rand(8, 3)).square().mean(), 8

        torch.manual_seed(5)
        want = torch.rand(3)
        torch.manual_seed(5)
        with played(script) as node:
            flock = Flock(model, samples=100, node=node.home, evaluate=evaluate)
            flock.draw(4)
            self.assertEqual(torch.rand(3).tolist(), want.tolist())
            flock.step(1.0)
        self.assertEqual([m.training for m in model], [True, False, True])
        self.assertEqual(seen[0]["weight"], 8)

    def test_private_state_comes_back(self):
        def make():
            model = nn.Sequential(linear(), nn.BatchNorm1d(2))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            return model, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0)

        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "new")

            def script(node):
                session = node.welcome()
                session.load(node.founded)
                session.lease(np.arange(8))
                session.step(0)
                session.save(saved)
                # Numbers drawn after the state was saved.
                session.step(1)
                session.end("left")

            model, optimizer, scaler = make()
            with played(script) as node:
                flock = Flock(model, samples=100, node=node.home, optimizer=optimizer, state=[scaler])
                drawn = []
                while flock.flying:
                    flock.draw(4)
                    drawn.append((torch.rand(2).tolist(), np.random.rand()))
                    model(torch.rand(4, 3)).square().mean().backward()
                    optimizer.step()
                    scaler._scale = torch.tensor(16.0)
                    flock.step(1.0)

            def later(node):
                node.saved = saved
                session = node.welcome()
                session.load(node.founded)
                session.lease(np.arange(4))
                session.step(0)
                session.end()

            model, optimizer, scaler = make()
            with played(later) as node:
                flock = Flock(model, samples=100, node=node.home, optimizer=optimizer, state=[scaler])
                flock.draw(4)
                self.assertEqual((torch.rand(2).tolist(), np.random.rand()), drawn[1])
                self.assertEqual(optimizer.state[model[0].weight]["step"].item(), 1)
                self.assertEqual(scaler.get_scale(), 16.0)
                self.assertEqual(model[1].num_batches_tracked.item(), 1)
                flock.step(1.0)

            with open(os.path.join(saved, os.listdir(saved)[0]), "r+b") as file:
                file.truncate(100)
            model, optimizer, scaler = make()
            with played(later) as node, self.assertLogs("starling_flock", "WARNING") as logs:
                flock = Flock(model, samples=100, node=node.home, optimizer=optimizer, state=[scaler])
                flock.draw(4)
                flock.step(1.0)
            self.assertIn("begins anew", logs.output[0])


if __name__ == "__main__":
    unittest.main()
