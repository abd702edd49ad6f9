"""The words of a report that a reader may not know, in a sentence or two each. Scores have theirs in the registry."""

from __future__ import annotations

from dataclasses import dataclass

from atmc.posterior.metric_entries import Task, columns


@dataclass(frozen=True)
class Term:
    """A word and what it means."""

    key: str
    name: str
    about: str


WORDS = tuple(
    Term(*words)
    for words in (
        (
            "interval",
            "95 % interval",
            "A test set is a sample, so every score has an error. Intervals made this way hold the true score "
            "for 95 of 100 test sets.",
        ),
        (
            "confidence",
            "Confidence",
            "The probability that the model gives to its own answer.",
        ),
        (
            "calibrated",
            "Calibrated",
            "Confidence means what it says: of the answers given with 80 % confidence, 80 % are right.",
        ),
        (
            "entropy",
            "Uncertainty (entropy)",
            "How spread out the probabilities are, in nats: 0 for one certain class, 0.69 for two equally "
            "likely classes, 2.30 for ten.",
        ),
        (
            "epistemic",
            "Epistemic uncertainty",
            "The part of the uncertainty on which the sampled networks disagree. More training examples like "
            "this one would reduce it.",
        ),
        (
            "aleatoric",
            "Aleatoric uncertainty",
            "The part on which the networks agree: the example itself is ambiguous or noisy. More training "
            "examples do not help.",
        ),
        (
            "sample",
            "Sample",
            "One network, drawn at random from all those that fit the training data.",
        ),
        (
            "predictive",
            "Posterior predictive",
            "The average of what all samples predict: the answer to use.",
        ),
        (
            "temperature",
            "T",
            "Temperature of the posterior: T = 1 is Bayes' rule, T below 1 trusts the data more than it says.",
        ),
        (
            "nats",
            "nats",
            "The unit of logarithms to the base e: a difference of 0.1 nats is a factor of 1.1 in probability.",
        ),
        (
            "ood",
            "Out-of-distribution (OOD)",
            "Inputs of another kind than the training data, which the model should not be sure about.",
        ),
        (
            "auroc",
            "AUROC",
            "How often an OOD input is more uncertain than a test input: 50 % is chance, 100 % perfect.",
        ),
        (
            "thermostat",
            "Thermostat",
            "A number of the sampler for each weight that adjusts friction so that the chain keeps its temperature.",
        ),
        (
            "chain",
            "Chain",
            "One run of the sampler through the space of networks. Several that agree are evidence that they "
            "have found the same posterior.",
        ),
    )
)


# Words of classifiers alone.
CLASSES = ("confidence", "calibrated", "entropy", "ood", "auroc")


def terms(task: Task = "classification") -> list[Term]:
    """The words of a task, scores first."""
    scores = [Term(metric.name, metric.label, metric.about) for metric in columns(task) if metric.about]
    return [*scores, *(term for term in WORDS if task == "classification" or term.key not in CLASSES)]
