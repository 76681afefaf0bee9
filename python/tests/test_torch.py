"""PyTorch models: what of them is averaged, and how their tensors come from and go to the node."""

import copy
import gc
import math
import unittest

import numpy as np
from mock_node import played

try:
    import torch
    from torch import nn

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
        model[0].register_buffer("again", model[1].running_mean)
        model.nothing = nn.Parameter(torch.zeros(0))
        tensors = Tensors(model)
        kinds = {held.name: held.kind for held in tensors.travel}
        self.assertEqual(
            kinds,
            {
                "0.weight": "learned",
                "1.weight": "learned",
                "1.bias": "learned",
                "0.again": "mean",
                "1.running_var": "mean",
            },
        )
        self.assertEqual(list(tensors.frozen), ["0.bias"])
        self.assertEqual(sorted(tensors.local), ["1.num_batches_tracked", "mask", "nothing"])
        kept = Tensors(model, local=["*.running_*", "*.again"])
        self.assertEqual([held.name for held in kept.travel], ["0.weight", "1.weight", "1.bias"])
        self.assertIn("1.running_var", kept.local)

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
        np.testing.assert_array_equal(
            model.weight.detach().contiguous().flatten().numpy(), theta[:36].astype(np.float64)
        )

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

    def test_a_second_read_goes_on_from_the_first_also_in_the_middle_of_two_values(self):
        for dtype, step in ((torch.bfloat16, 2**-7), (torch.float16, 2**-10)):
            # What is loaded, and what is offered after a step, both round to the even one of two neighbours.
            theta = np.full(8, 1 + step / 2, dtype=np.float32)

            def script(node, theta=theta, step=step):
                session = node.welcome()
                session.load(theta)
                session.lease(np.arange(8))
                session.step(0)
                first, second = session.read(), session.read()
                np.testing.assert_array_equal(first, theta + np.float32(step))
                np.testing.assert_array_equal(second, first)
                session.end()

            model = linear().to(dtype)
            with played(script) as node:
                flock = Flock(model, samples=100, node=node.home)
                flock.draw(4)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter += step
                flock.step(1.0)

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
        self.assertEqual(
            session.hello["frozen"], digest_of({"base.weight": model.base.weight, "base.bias": model.base.bias})
        )
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


if __name__ == "__main__":
    unittest.main()
