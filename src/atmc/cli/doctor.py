"""`atmc doctor RUN`: convergence diagnostics and what to change."""

from __future__ import annotations

from pathlib import Path

from atmc.cli.console import emit, next_step, printable, say, working

MARKS = {"ok": "✓", "note": "·", "warning": "!", "problem": "✗"}


def doctor(run: Path, *, as_json: bool) -> int:
    """The command; returns 0 also for a chain with problems."""
    from atmc.cli.open_runs import check_run, scores_next, tell_damage

    check_run(run)
    with working(f"examining {run}"):
        from atmc.diagnose.suggested_commands import split_command
        from atmc.report.read_run import Reading

        reading = Reading(run)
        findings = reading.findings()
        damaged = reading.run.damage()
    tell_damage(run, damaged)
    if as_json:
        emit([{"level": f.level, "title": f.title, "evidence": f.evidence, "action": f.action} for f in findings])
        return 0
    for finding in findings:
        say(f"{MARKS.get(finding.level, '·')} {printable(finding.title)}")
        if finding.evidence:
            say(f"    {printable(finding.evidence)}")
        if finding.action:
            say(f"    → {printable(finding.action)}", split_command(finding.action)[1])
    # A run that gave up would only say so again: what is next is the smaller step size.
    smaller = split_command(findings[0].action)[1] if reading.run.status == "diverged" else ""
    next_step(smaller or scores_next(run, reading.run))
    return 0
