"""The loaders for hand-written PySpark jobs: every change of a Delta table once, deletes included.

```python
from strandline.loader import DeltaLoaderFactory, DeltaLoadOptions, DeltaManager

options = DeltaLoadOptions(
    strategy="CDF", delta_load_identifier="nightly", strategy_options={"deduplication_columns": ["id"]}
)
loader = DeltaLoaderFactory.create_loader(table_identifier="silver.customers", options=options)
changes = loader.get_data()  # with _change_type: insert, update or delete
DeltaManager().merge_dataframe(table="gold.customers", data_frame=changes, key_columns=["id"])
loader.consume_data()
```

A table is a name, a path, or an object with `.identifier`. What was read is kept in `etl_loads` and `etl_control`, in
the folder or schema that `STRANDLINE_ETL_SCHEMA` names (default: `.strandline` in the working directory).
"""

from strandline.loader.batches import (
    ETLControlManager,
    batch_complete,
    batch_fail,
    batch_start,
    get_watermark,
    reset_watermark,
)
from strandline.loader.columns import (
    evolve,
    final_columns,
    new_columns,
    removed_columns,
    select_columns,
)
from strandline.loader.deltas import (
    DeltaLoader,
    DeltaLoaderFactory,
    DeltaLoadOption,
    DeltaLoadOptions,
)
from strandline.loader.reading import DataLoader, get_latest_version, load_cdf, load_full_snapshot
from strandline.loader.writing import DeltaManager

__all__ = [
    "DataLoader",
    "DeltaLoadOption",
    "DeltaLoadOptions",
    "DeltaLoader",
    "DeltaLoaderFactory",
    "DeltaManager",
    "ETLControlManager",
    "batch_complete",
    "batch_fail",
    "batch_start",
    "evolve",
    "final_columns",
    "get_latest_version",
    "get_watermark",
    "load_cdf",
    "load_full_snapshot",
    "new_columns",
    "removed_columns",
    "reset_watermark",
    "select_columns",
]
