"""Hugging Face's `Trainer` in a run: it keeps its loop, and draws its samples from the flock.

trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=held_out)
attach(trainer)
trainer.train()
"""

from torch.utils.data import DataLoader
from transformers import TrainerCallback

from .errors import FlockError
from .flock import Flock

# The run decides when the training is over, not the Trainer.
STEPS = 10**9


class Endless:
    """The batches of all leases. It has no length, so that the Trainer asks for none."""

    def __init__(self, flock, loader):
        self.flock, self.loader = flock, loader

    def __iter__(self):
        return self.flock.batches(self.loader)


class Callback(TrainerCallback):
    def __init__(self, flock, schedule):
        self.flock, self.schedule, self.loss = flock, schedule, 0.0

    def on_train_begin(self, args, state, control, optimizer=None, **others):
        # The Trainer makes its optimizer when the training begins.
        if optimizer is not None:
            self.flock.keep(optimizer)

    def on_step_begin(self, args, state, control, optimizer=None, **others):
        if self.schedule and optimizer is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.flock.lr

    def on_step_end(self, args, state, control, **others):
        loss, self.loss = self.loss, 0.0
        if not self.flock.step(loss):
            control.should_training_stop = True
        return control


def attach(trainer, *, evaluate=None, schedule=True, **options):
    """Makes a Trainer draw its samples from the flock, and tell it each step. Call `trainer.train()` after it.

    The validation is the Trainer's own if it has an `eval_dataset`, unless `evaluate` is another one. With `schedule`
    the learning rate is the run's; without it the Trainer's. The other options are those of `Flock`, which it returns.
    """
    if trainer.train_dataset is None or not hasattr(trainer.train_dataset, "__len__"):
        raise FlockError("the Trainer's train_dataset has no length, so its samples have no numbers: use one that has")
    if evaluate is None and trainer.eval_dataset is not None:

        def evaluate():
            return trainer.evaluate()["eval_loss"]

    flock = Flock(trainer.model, samples=len(trainer.train_dataset), evaluate=evaluate, **options)
    callback = Callback(flock, schedule)
    make_loader, one_step = trainer.get_train_dataloader, trainer.training_step

    def get_train_dataloader():
        # The Trainer's own loader says how to collate. It would read ahead of a step, so it is not used itself.
        made = make_loader()
        loader = DataLoader(
            made.dataset,
            batch_size=trainer.args.train_batch_size,
            sampler=flock.sampler,
            collate_fn=made.collate_fn,
            num_workers=trainer.args.dataloader_num_workers,
            pin_memory=trainer.args.dataloader_pin_memory and made.pin_memory,
            persistent_workers=trainer.args.dataloader_num_workers > 0,
        )
        return Endless(flock, loader)

    def training_step(*arguments, **named):
        # The Trainer scales the losses of a step's micro-batches, so that their sum is their mean.
        loss = one_step(*arguments, **named)
        callback.loss = callback.loss + loss.detach()
        return loss

    trainer.get_train_dataloader, trainer.training_step = get_train_dataloader, training_step
    trainer.args.max_steps = STEPS
    trainer.add_callback(callback)
    return flock
