"""The folders of a user in which everything that others can write says one text: runs, A/Bs, recipes, results."""

import json
import shutil
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.events import Exited, Health, HealthChanged, RequestDone, encode
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.verdict import build_report as judged
from dflash_tui.monitoring import recording
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs.run import Run
from tests.support.experiment_factories import a_design, a_plan, boots, told, written

RUN = "20261121-010221-toy"
AB = "20261121-012400-demo-cpu"


def made(said: str, folder: Path) -> None:
    """Make a failed run, an A/B, a recipe, a patch and a result of another tool that say `said` wherever they can."""
    _run(said)
    _experiment(said)
    for kind in (paths.user_recipes_folder(), paths.user_patches_folder()):
        kind.mkdir(parents=True)
        (kind / "quoted.yaml").write_text(json.dumps({"title": said, said: said}))
        (kind / "raw.yaml").write_bytes(b"title: [\n" + said.encode(errors="surrogateescape"))
    result = {"backend": "vllm", "model_id": said, "completed": 1, "output_throughput": 2.0}
    (folder / "result.json").write_text(json.dumps(result))
    report = store.read_report(store.experiment_folder(AB))
    (folder / "report.json").write_bytes(msgspec.json.encode(report))


def _run(said: str) -> None:
    folder = paths.runs_folder() / RUN
    folder.mkdir(parents=True)
    shutil.copy(paths.sample_folder() / recording.LOG_PART, folder)
    fields = msgspec.json.decode((paths.sample_folder() / recording.RUN_PART).read_bytes())
    run = msgspec.convert(fields | {"id": RUN, "born": "other:1"}, Run)
    plan = replace(
        run.plan, title=said, target=said, drafter=said, served_name=said, synthetic=said, warnings=(said,),
        argv=(*run.plan.argv, f"--x={said}"), env={"X": said}, profile=said, variant=said, vllm=said,
        engine_folder=f"/{said}", request=LaunchRequest(recipe="toy", settings={"x": said}),
    )  # fmt: skip
    run = replace(run, plan=plan, engine=said, forced=said, patches=(said,))
    (folder / recording.RUN_PART).write_bytes(msgspec.json.encode(run))
    at = run.started_at + 400
    events = (
        RequestDone(at, said, 0, 0, None, 1.0, None, said, error=said),
        HealthChanged(at, Health.UNHEALTHY, said),
        Exited(at + 1, 1),
    )
    with (folder / recording.SAMPLES_PART).open("wb") as file:
        file.writelines(encode(event) + b"\n" for event in events)
    with (folder / recording.LOG_PART).open("ab") as log:
        for line in (said, f"torch.OutOfMemoryError: CUDA out of memory. {said}", f"ValueError: {said}"):
            log.write(b"\n" + line.encode(errors="surrogateescape"))
        log.write(b"\n")


def _experiment(said: str) -> None:
    plan = replace(a_plan("eager"), title=said, served_name=said, synthetic=said, target=said, env={"X": said})
    design = a_design({said: plan, f"{said} 2": replace(plan, argv=(*plan.argv, said))}, vary=said, recipe=said)
    design = replace(design, id=AB, suite=said.replace("\0", ""), synthetic=said)
    measured = [
        replace(boot, engine=said, driver=said, gpus=(said,), patches={said: "ab"}, versions={said: said})
        for boot in boots(design, (10.0, 18.5))
    ]
    measured[3] = replace(measured[3], error=said)
    written(design, told(design, measured), judged(design, measured))
