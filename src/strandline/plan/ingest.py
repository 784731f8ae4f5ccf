"""Which node reads the outside source of a node's rows, and what it leaves out on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.key_columns import keeps_every_key
from strandline.config.load import Project
from strandline.config.model import NodeConfig, StepConfig
from strandline.config.reads import ReadConfig
from strandline.plan.inputs import is_lake, table_of


def steps_of(node: NodeConfig) -> Sequence[StepConfig]:
    """The registered steps of a node."""
    return node.transform.steps if node.transform else ()


def upstream(project: Project, node: NodeConfig) -> list[NodeConfig]:
    """A node and those that its rows passed through, up to the first that does not read one table of this project."""
    found = [node]
    while (writer := _writer(project, found[-1])) is not None and writer not in found:
        found.append(writer)
    return found


def _writer(project: Project, node: NodeConfig) -> NodeConfig | None:
    """The node of the project that writes the one lake table that a node reads."""
    reads = [read for _, read in node.reads()]
    if len(reads) != 1 or not is_lake(project, reads[0]):
        return None
    lake = table_of(project, reads[0].connection, reads[0].table or "")
    nodes = project.config.nodes
    return next(
        (n for n in nodes if table_of(project, n.write.connection, n.write.table) == lake), None
    )


def starts_late(project: Project, node: NodeConfig) -> bool:
    """Does a read on the way begin at a bound that the configuration gives? What is older was never wanted."""
    return any(_bounded(read) for one in upstream(project, node) for _, read in one.reads())


def _bounded(read: ReadConfig) -> bool:
    from strandline.sql.bounded import mentions_last_value

    incremental = read.incremental
    if incremental is not None and (
        incremental.mode == "rolling_window" or incremental.initial_value is not None
    ):
        return True
    return not all(mentions_last_value(mark.expression) for mark in read.watermark)


def leaves_out(project: Project, node: NodeConfig, config: DeleteDetectionConfig) -> bool:
    """Does a node on the way leave rows out by a step, by SQL, or by a query that is not the one compared with?

    What the node itself leaves out of a lake table is still in that table.
    """
    nodes = upstream(project, node)
    chosen = nodes[1:] if is_lake(project, node.reads()[0][1]) else nodes
    if any(
        one.transformation_sql is not None or not keeps_every_key(steps_of(one)) for one in chosen
    ):
        return True
    queries = [read.query for _, read in nodes[-1].reads() if read.query is not None]
    return any(_bare(query) != _bare(config.source_query or "") for query in queries)


def _bare(query: str) -> str:
    return " ".join(query.split()).rstrip("; ")


def askers(project: Project, node: NodeConfig) -> Iterator[NodeConfig]:
    """The other nodes of a project that read what this node writes, and nothing else."""
    for other in project.config.nodes:
        if other is not node and _writer(project, other) == node:
            yield other
