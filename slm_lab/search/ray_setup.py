"""Ray and Tune as a search needs them: their settings, a cluster to run on, its resources."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from slm_lab.error import LabError
from slm_lab.runs.provenance import PACKAGE_ROOT
from slm_lab.search.plan import SearchPlan
from slm_lab.search.processes import (
    children,
    clear_remains,
    end_processes,
    forget_processes,
    remember_processes,
)
from slm_lab.spec import Problem, SpecError
from slm_lab.training.executors.local import available_cores, signals_kept
from slm_lab.training.executors.ray_cluster import QUIET, cluster_ready, ray as ray

# Tune reads these when it is imported. It shall write no tables and no files of its own, leave
# Ctrl-C alone, and run each trial in the folder that the search was started in.
os.environ |= {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "10000",  # else one process starts after the other
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}

from ray import tune as tune  # other files import these from here, after the settings above
from ray.tune.schedulers import ASHAScheduler as ASHAScheduler, FIFOScheduler as FIFOScheduler
from ray.tune.search import Searcher as Searcher


class RayNotStarted(LabError):
    """The local Ray of a search could not be started."""

    exit_code = 1


@contextmanager
def ray_ready(
    address: str | None, search_dir: Path, modules: Sequence[Path] = ()
) -> Iterator[None]:
    """Connect to a Ray: the caller's if there is one, the cluster at an address, or a local Ray
    that is started here and stopped again. Nothing else is ever stopped. Its processes find the
    modules of the user's own, which a cluster is sent."""
    if address:
        with cluster_ready(address, modules):
            yield
        return
    if ray.is_initialized():
        yield
        return
    clear_remains(search_dir)
    not_of_ray = children()
    remember_processes(search_dir)  # this one, in case it is killed while Ray starts
    try:
        with (
            _code_on_path(modules),
            signals_kept(),
        ):  # every process that Ray starts inherits the path
            ray.init(address="local", num_cpus=available_cores(), include_dashboard=False, **QUIET)
    except BaseException as error:
        _shut_down([process for process in children() if process not in not_of_ray])
        forget_processes(search_dir)
        if not isinstance(error, Exception):
            raise
        # A plain Exception, if one of its processes dies meanwhile.
        raise RayNotStarted(
            f"Ray did not start on this machine ({error!s:.300}). Once there is memory, and with a "
            "TMPDIR whose path is short, go on with search@latest."
        ) from error
    of_ray = [process for process in children() if process not in not_of_ray]
    remember_processes(search_dir)
    try:
        yield
    finally:
        _shut_down(of_ray)
        forget_processes(search_dir)


def _shut_down(of_ray: Collection[psutil.Process]) -> None:
    """Stop the local Ray, and its agents, which take their time to notice that it is gone."""
    started = [*of_ray]
    for process in of_ray:
        with suppress(psutil.NoSuchProcess):
            started += process.children(recursive=True)
    ray.shutdown()
    end_processes(started)


def check_local_fit(plan: SearchPlan, address: str | None) -> None:
    """Refuse a trial that this machine is too small for, before a local Ray is started."""
    if address is None and not ray.is_initialized():
        _check_fit({"cpu": plan.cpu}, [{"CPU": available_cores()}])


def trial_resources(plan: SearchPlan) -> dict[str, float]:
    """Resources of one trial, which must fit on one node; gpu is dropped if no node has one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"cpu": plan.cpu}
    if plan.gpu and any(node.get("GPU") for node in nodes):
        wanted["gpu"] = plan.gpu
    _check_fit(wanted, nodes)
    return wanted


def trials_at_once(plan: SearchPlan) -> int:
    """How many trials the nodes have room for, at least one; none is split between two nodes."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": plan.cpu, "GPU": plan.gpu if any(node.get("GPU") for node in nodes) else 0}
    room = (
        min(node.get(name, 0) // amount for name, amount in wanted.items() if amount)
        for node in nodes
    )
    return max(1, int(sum(room)))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Tune's logs and warnings about itself: table and journal show what matters."""
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train", "ray.air")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _check_fit(wanted: Mapping[str, float], nodes: list[dict[str, float]]) -> None:
    for name, amount in wanted.items():
        most = max(node.get(name.upper(), 0) for node in nodes)
        if amount > most:
            where = "this machine has" if len(nodes) == 1 else "no node has more than"
            message = f"found {amount:g}; {where} {most:g}. Ask for {most:g} or less."
            raise SpecError([Problem(f"meta.search_resources.{name}", message)], "the spec")


@contextmanager
def _code_on_path(modules: Sequence[Path]) -> Iterator[None]:
    """Let new processes import the slm_lab that runs here, also when it is a checkout, and modules
    from a folder that only this process has on its path. They look in the working directory last,
    as this one does."""
    before = os.environ.get("PYTHONPATH")
    in_checkout = PACKAGE_ROOT.name not in ("site-packages", "dist-packages")
    folders = {str(path.parent): None for path in modules if path.parent != Path.cwd()}
    path = [*([str(PACKAGE_ROOT)] if in_checkout else []), *([before] if before else []), *folders]
    if path:
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before
