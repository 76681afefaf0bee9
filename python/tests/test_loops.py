"""Training loops of users: loaders, workers, accumulation, scalers, private state."""

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
except ImportError as e:
    raise unittest.SkipTest(f"PyTorch is not installed ({e})")


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
