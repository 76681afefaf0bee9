"""Hugging Face's Trainer in a run."""

import os
import tempfile
import unittest

import numpy as np
from mock_node import played

try:
    import accelerate  # noqa: F401
    import torch
    from torch import nn
    from torch.utils.data import Dataset
    from transformers import Trainer, TrainingArguments

    from starling_flock.huggingface import attach
except ImportError as e:
    raise unittest.SkipTest(f"transformers and accelerate are not installed ({e})")


class Numbers(Dataset):
    def __init__(self, seen=None):
        self.seen = seen

    def __len__(self):
        return 500

    def __getitem__(self, n):
        if self.seen is not None:
            self.seen.append(n)
        return {"x": torch.tensor([n / 500, 1.0]), "labels": torch.tensor(n / 250)}


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x, labels):
        loss = (self.line(x)[:, 0] - labels).square().mean()
        return {"loss": loss, "logits": self.line(x)}


class HuggingFace(unittest.TestCase):
    def test_a_trainer_flies(self):
        losses, validations, rates = [], [], []

        def script(node):
            session = node.welcome()
            theta = node.founded
            for n, steps in enumerate([5, 2, 5]):
                session.load(theta, n + 1)
                validations.append(session.evaluate()["loss"])
                session.lease(np.arange(100 * n, 100 * n + 40), n + 1)
                losses.extend(session.step(step, lr=0.1 / (n + 1))["loss"] for step in range(steps))
                theta = session.read()
            session.save(os.path.join(folder, "saved"))
            session.end()

        class Watched(torch.optim.SGD):
            def step(self, *arguments, **named):
                rates.append(self.param_groups[0]["lr"])
                return super().step(*arguments, **named)

        torch.manual_seed(1)
        model, seen = Line(), []
        with tempfile.TemporaryDirectory() as folder, played(script, unit=8) as node:
            arguments = TrainingArguments(
                os.path.join(folder, "out"),
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                logging_strategy="no",
                max_grad_norm=0.0,
            )
            trainer = Trainer(
                model=model,
                args=arguments,
                train_dataset=Numbers(seen),
                eval_dataset=Numbers(),
                optimizers=(Watched(model.parameters(), lr=9.0), None),
            )
            attach(trainer, node=node.home)
            trainer.train()
            self.assertEqual(os.listdir(os.path.join(folder, "saved")), ["trainer-0.pt"])
        want = [n + 100 * r for r, steps in enumerate([5, 2, 5]) for n in range(8 * steps)]
        # Of a round that was cut short the loader may have read one more batch.
        self.assertEqual([n for n in seen if n in want], want)
        self.assertEqual(trainer.state.global_step, 12)
        np.testing.assert_allclose(rates, [0.1] * 5 + [0.05] * 2 + [0.1 / 3] * 5)
        x = np.arange(8, dtype=np.float32) / 500
        first = np.mean((x * node.founded[0] + node.founded[1] + node.founded[2] - 2 * x) ** 2)
        self.assertAlmostEqual(losses[0], float(first), places=4)
        self.assertLess(losses[-1], losses[0])
        self.assertLess(validations[-1], validations[0])


if __name__ == "__main__":
    unittest.main()
