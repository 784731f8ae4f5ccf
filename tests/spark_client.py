"""A run in a process of its own, on the JVM of another one: killed, it leaves a JVM that the next process goes on with.

Called with the folder, the hour of the run and the fault; with `alone` it has a JVM of its own, which is killed there,
or a while after: `commit.before+0.5`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def shared(staging: Path) -> Any:
    """A platform on the JVM that PYSPARK_GATEWAY_PORT names."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from strandline.engine.spark.session import SparkPlatform

    gateway = launch_gateway()
    jvm = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    return SparkPlatform(SparkSession(context), staging, owned=False)


def main() -> None:
    from tests.crashing import at

    from strandline import failpoints
    from strandline.project import load
    from strandline.run.retry import Retry
    from strandline.types import Clock

    folder, hour, fault, *alone = sys.argv[1:]
    project = load(folder, engine="spark")
    if alone:
        from strandline.engine import connect

        platform = connect("spark", project.config)
        java = int(platform.session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[attr-defined]

        point, _, seconds = fault.partition("+")

        def hook(name: str, _node: str | None) -> None:
            if name == point:
                killing = threading.Timer(float(seconds or 0), os.kill, (java, signal.SIGKILL))
                killing.start()
                if not seconds:
                    killing.join()

        armed = failpoints.armed(hook)
    else:
        platform = shared(project.store.folder / "_staging")
        armed = failpoints.armed(f"{fault}:kill")
    with armed:
        result = project.run(
            platform=platform, threads=1, clock=Clock(at(int(hour))), retry=Retry(attempts=1)
        )
    sys.stdout.write(",".join(n.status for n in result.nodes))
    sys.stdout.flush()
    os._exit(0)  # the JVM is not ours to end, or is dead


if __name__ == "__main__":
    main()
