"""Record which ops torch's own database declares with float32 and without a 16-bit dtype, per device type.

Usage, under the torch to record:
``python benchmarks/record_low_precision_support.py > fixtures/low_precision_support.json`` (it needs
``expecttest``). Declarations are torch's word, by op name; nothing is run.
"""

from __future__ import annotations

import json

import torch
from torch.testing._internal.common_methods_invocations import op_db


def _unsupported(device: str, dtype: torch.dtype) -> list[str]:
    names = set()
    for op in op_db:
        declared = op.supported_dtypes(device)
        if torch.float32 in declared and dtype not in declared:
            names.add(f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name)
    return sorted(names)


def main() -> None:
    record = {
        "source": "torch.testing._internal.common_methods_invocations.op_db, supported_dtypes(device): "
        "float32 declared, the 16-bit dtype not",
        "command": "python benchmarks/record_low_precision_support.py",
        "torch": torch.__version__.split("+")[0],
        "devices": {
            device: {
                name: _unsupported(device, dtype)
                for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16))
            }
            for device in ("cpu", "cuda")
        },
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
