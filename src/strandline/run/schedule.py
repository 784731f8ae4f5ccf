"""Walking a graph: independent nodes side by side, a failed node stops its descendants and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from strandline.plan.graph import Graph
from strandline.result import NodeResult

STOPS = ("failed", "fenced", "skipped")


def walk(
    graph: Graph,
    chosen: Sequence[str],
    threads: int,
    work: Callable[[str], NodeResult],
    done: Callable[[NodeResult], None],
    after: Callable[[NodeResult], Iterable[NodeResult]] = lambda _: (),
) -> list[NodeResult]:
    """Do the work of each chosen node after its chosen ancestors; returns results in the graph's order.

    What `after` a node gives are new results of earlier ones; nobody begins meanwhile.
    """
    results: dict[str, NodeResult] = {}
    waiting = list(chosen)
    running: dict[Future[NodeResult], str] = {}
    ancestors = {n: graph.reach(n, up=True) & set(chosen) for n in chosen}

    def finish(result: NodeResult) -> None:
        results[result.name] = result
        done(result)
        for changed in after(result):
            results[changed.name] = changed
            done(changed)

    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="strandline") as pool:
        while waiting or running:
            for name in list(waiting):
                stopped = [
                    a
                    for a in chosen
                    if a in ancestors[name] and a in results and results[a].status in STOPS
                ]
                if stopped:
                    waiting.remove(name)
                    finish(
                        NodeResult(
                            name,
                            "skipped",
                            warnings=[f"skipped, because `{stopped[0]}` did not succeed"],
                        )
                    )
                elif ancestors[name] <= results.keys():
                    waiting.remove(name)
                    running[pool.submit(work, name)] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                del running[future]
                finish(future.result())
    return [results[n] for n in chosen]
