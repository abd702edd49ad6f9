"""Between a chain and its files: takes samples, writes checkpoints, rolls back after a divergence, resumes.

In a data-parallel chain every process has a keeper and makes the same decisions, since all see the same losses; only
the first one writes, and the others read its checkpoints.
"""

import time
from pathlib import Path
from typing import Any

from torch import Tensor

from atmc.common.errors import RunError
from atmc.engine.chain import Chain
from atmc.engine.divergence_guard import Divergence
from atmc.engine.guessing import TRAINING, verdict
from atmc.engine.progress import Progress
from atmc.samplers import Sampler
from atmc.storage.chain_folder import ChainStore, Saved
from atmc.storage.files import read_tensors
from atmc.storage.manifest import Manifest
from atmc.storage.prediction_files import from_file, to_file
from atmc.storage.run_directory import split_file
from atmc.storage.state_packing import all_finite


class GaveUpError(RunError):
    """A chain has diverged as often as it may."""


class Checkpointer:
    """One chain and its folder. `store` is None in a process that does not write."""

    def __init__(self, chain: Chain, store: ChainStore | None, folder: Path, progress: Progress) -> None:
        self.chain, self.store, self.folder, self.progress = chain, store, folder, progress
        self.done = False
        self.slowest = 0.0  # seconds of the slowest checkpoint so far
        self._rolled_back_to = -1
        self._sample_times = set(chain.schedule.sample_after)
        self._cycle_ends = set(chain.schedule.cycle_ends)
        self._untold: list[dict[str, Any]] = []  # rows to be shown with the sample that is due at their step

    @property
    def samples(self) -> int:
        return len(self.store.bank) if self.store is not None else 0

    # -- beginning and ending ----------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Restore the newest good checkpoint, or start at step 0 and checkpoint that; returns the step."""
        saved = self.store.restore() if self.store is not None else None
        fresh = bool(self.chain.world.agree([self.store is not None and saved is None])[0])
        if fresh:
            self.chain.start(0)
            self.checkpoint()
        else:
            self.chain.world.wait()
            self._load(saved if saved is not None else self._read())
            if self.store is not None:
                self._heal()
        self.done = self.chain.finished
        return self.chain.done

    def tell_notes(self) -> None:
        """What was damaged: to the person, and into the metrics."""
        if self.store is None or not self.store.notes:
            return
        for note in self.store.notes:
            self.progress.note(f"damaged: {note}")
            self.store.journal.write(
                {"event": "damage", "chain": self.chain.number, "step": self.chain.done, "what": note}
            )
        self.store.notes.clear()
        self.checkpoint()

    def end(self, status: str) -> None:
        """The last checkpoint of this session, where there is anything new."""
        if self.chain.finished and self.done:
            return
        if divergence := self._checkpoint(status):
            # The steps since the last checkpoint are worthless; that checkpoint is what the next session goes on from.
            self.progress.note(f"chain {self.chain.number}: {divergence.reason}; stopping at the last good checkpoint")

    # -- attending ---------------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """See to what has come back from the device, and to what is due at the step the chain has reached."""
        chain = self.chain
        divergence = chain.settle()
        self._write_rows()
        due = chain.done in self._sample_times
        if divergence is None and (due or chain.finished):
            divergence = chain.finish()
            self._write_rows()
        if divergence is None and due:
            divergence = self._sample()
        if divergence is None and chain.warming and chain.done == chain.schedule.warm_steps:
            divergence = self._warmed_up()
        self._tell_rest()
        if divergence is not None:
            self._roll_back(divergence)
            return
        if chain.finished:
            self._row({"event": "end", "seconds": chain.seconds})
            self.done = True
            self.checkpoint()
        elif due or chain.done in self._cycle_ends:
            # After a cycle that gives no sample, too: the next one's first large steps are where a chain may diverge.
            self.checkpoint()

    def _warmed_up(self) -> Divergence | None:
        """Write down what the warm start has learned, which samples are compared with later."""
        divergence = self.chain.finish()
        if divergence is None and self.store is not None:
            self.chain.pause()
            self._row({"event": "warm", TRAINING: {"single": self.chain.evaluator.try_out(self.chain.sample())}})
            self.chain.resume()
        return divergence

    def _sample(self) -> Divergence | None:
        """Take the sample that is due. It enters the bank only if it is finite and not much worse than guessing."""
        refused = None if self.store is None else self._try_sample(self.store)
        if self.chain.world.agree([refused is not None])[0]:
            reason = refused or "the sample was refused by the process that writes"
            return self.chain.guard.divergence(self.chain.done, reason)
        return None

    def _try_sample(self, store: ChainStore) -> str | None:
        """Take the sample, or say why it is refused: the weights may have broken with steps that no loss has shown."""
        chain = self.chain
        chain.pause()
        index = chain.schedule.sample_after.index(chain.done)
        known = store.sample_at(index)
        tensors = known if known is not None else chain.sample()
        before = chain.evaluator.state()
        predictions, scores = chain.evaluator.add(tensors)
        training: dict[str, dict[str, float]] = {}
        if not all_finite([*tensors.values(), *predictions.values()]):
            refused: str | None = "a sample's weights or predictions are not finite"
        else:
            training = chain.evaluator.training(tensors)
            single = {TRAINING: training.get("single", {})} | {k: v["single"] for k, v in scores.items()}
            refused = verdict(single, chain.guess, chain.recipe.run.worst_sample, chain.overshoot)
        if refused is not None:
            chain.evaluator.load(before)
            return refused
        place = {
            "step": chain.done,
            "epoch": chain.schedule.epoch(chain.done),
            "cycle": chain.schedule.cycle(chain.done - 1),
        }
        if known is None:
            temperature = chain.clock.host_temperature(chain.done - 1)
            store.add_sample(tensors, {"index": index, **place, "temperature": temperature})
        self._predictions(index, predictions)
        readings: dict[str, Any] = {}
        if isinstance(chain.optimizer, Sampler):
            read = chain.optimizer.readings()
            readings = {**read.as_dict(), "tensors": read.by_tensor()}
        self._row({"event": "sample", "index": index, **place, "scores": scores, TRAINING: training, **readings})
        chain.resume()
        return None

    def _predictions(self, index: int, predictions: dict[str, Tensor]) -> None:
        assert self.store is not None
        regression = self.chain.potential.likelihood.task != "classification"
        for split, probs in predictions.items():
            self.store.add_prediction(split, index, to_file(probs, regression))

    def checkpoint(self) -> None:
        """Write the chain's state; if it has diverged since the last look, roll back instead."""
        if divergence := self._checkpoint("done" if self.done else "running"):
            self._roll_back(divergence)

    def _checkpoint(self, status: str) -> Divergence | None:
        began = time.monotonic()
        if divergence := self.chain.finish():
            return divergence
        self._write_rows()
        self.chain.pause()
        if self.store is not None:
            tensors, values = self.chain.state()
            self.store.manifest.values["status"] = status
            self.store.checkpoint(self.chain.done, tensors, values)
        self.chain.world.wait()
        self.chain.resume()
        self.slowest = max(self.slowest, time.monotonic() - began)
        return None

    # -- divergence --------------------------------------------------------------------------------------------------

    def _roll_back(self, divergence: Divergence) -> None:
        chain, run = self.chain, self.chain.recipe.run
        rollbacks, scale = chain.rollbacks, chain.clock.scale
        set_aside = self._set_aside(divergence)
        if rollbacks >= run.max_rollbacks:
            kept = f"{self.samples} sample{' is' if self.samples == 1 else 's are'}"
            raise GaveUpError(
                f"chain {chain.number} diverged at step {divergence.step} ({divergence.reason}) after {rollbacks} "
                f"rollbacks (run.max_rollbacks): lower sampler.lr or the speeds{self._by_how_much()}; its {kept} kept"
            )
        saved = self._read(divergence.since)
        if saved.step == self._rolled_back_to:  # a second divergence from there: then the one before
            saved = self._read(saved.step)
        self._rolled_back_to = saved.step
        self._load(saved)
        chain.world.wait()  # all have read: now the files may change
        chain.rollbacks = rollbacks + 1
        chain.clock.set(saved.step, scale * run.rollback_factor)
        self._row(
            {
                "event": "rollback",
                "step": saved.step,
                "epoch": chain.schedule.epoch(saved.step),
                "diverged_at": divergence.step,
                "since": divergence.since,
                "reason": divergence.reason,
                "set_aside": set_aside,
                "lr_scale": chain.clock.scale,
                "rollbacks": chain.rollbacks,
            }
        )
        self.progress.note(
            f"chain {chain.number} diverged at step {divergence.step} ({divergence.reason}): back to step {saved.step} "
            f"with the step size times {chain.clock.scale:g}"
        )
        self.checkpoint()

    def _by_how_much(self) -> str:
        """What the step size has to be multiplied with, where it was far from stable from the start."""
        share = self.chain.stability.stable_share(self.chain.optimizer)
        return "" if share is None else f" to {share:g} of what they are"

    def _set_aside(self, divergence: Divergence) -> list[int]:
        """Take samples out of the bank that were drawn when the chain had diverged already; which they were."""
        if self.store is None:
            return []
        bad = [at for at, entry in enumerate(self.store.bank.entries) if entry.step >= divergence.since]
        numbers = [int(self.store.bank.meta(at)["index"]) for at in bad]
        for at in reversed(bad):
            self.store.bank.set_aside(at, f"drawn at or after step {divergence.since}, where the chain diverged")
        for number in numbers:
            self.store.forget_predictions(number)
        return numbers

    # -- files -------------------------------------------------------------------------------------------------------

    def _read(self, before: int | None = None) -> Saved:
        store = self.store if self.store is not None else ChainStore(Manifest.load(self.folder))
        return store.read(before)

    def _load(self, saved: Saved) -> None:
        self.chain.load(saved.step, saved.tensors, saved.values)

    def _write_rows(self) -> None:
        rows, self.chain.rows = self.chain.rows, []
        for row in rows:
            self._row(row)

    def _row(self, row: dict[str, Any]) -> None:
        row = {
            "chain": self.chain.number,
            "step": self.chain.done,
            "epoch": self.chain.schedule.epoch(self.chain.done),
            **row,
        }
        if self.store is None:
            return
        self.store.journal.write(row)
        if row["event"] == "unstable":
            self.progress.note(row["what"])
        if row["event"] == "log" and row["step"] == self.chain.done and row["step"] in self._sample_times:
            self._untold.append(row)  # its line has the number of samples, of which another is about to be drawn
        else:
            self.progress.row(row, self.samples)

    def _tell_rest(self) -> None:
        rows, self._untold = self._untold, []
        for row in rows:
            self.progress.row(row, self.samples)

    def _heal(self) -> None:
        """Make again what can be: predictions that were lost, or that a newly named split needs."""
        assert self.store is not None
        evaluator, manifest = self.chain.evaluator, self.store.manifest
        entries = self.store.bank.entries
        healed = False
        for position, entry in enumerate(entries):
            for split in evaluator.batches:
                if split_file(entry.meta["index"], split) not in manifest.values["files"]:
                    probs = evaluator.predict(self.store.bank[position], split)
                    self._predictions(int(entry.meta["index"]), {split: probs})
                    healed = True
        for split in evaluator.batches:
            if split not in evaluator.total and evaluator.count:
                seen = [e for e in entries if e.step <= self.chain.done]
                parts = [from_file(read_tensors(*manifest.entry(split_file(e.meta["index"], split)))[0]) for e in seen]
                if parts:
                    evaluator.total[split] = sum(parts[1:], parts[0].clone())
                    healed = True
        if healed:
            self.checkpoint()
