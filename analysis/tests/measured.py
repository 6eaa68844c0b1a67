"""A small tlscost-collect for tests of the sweep engine: writes a whole record, or fails.

The environment's CONTROL is a directory. `log` there gets a line for each run; `fail` (JSON
{part of a name: [how often, exit code]}) makes runs fail; while `hold` is there, runs whose name
has its content as a part stay between the first line and the footer; with `stubborn` there a run
ignores SIGTERM.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import synthetic

record = Path(sys.argv[sys.argv.index("--record") + 1])
control = Path(os.environ["CONTROL"])
if (control / "stubborn").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
log = control / "log"
with log.open("a", encoding="utf-8") as lines:
    lines.write(f"{record.stem}\n")
runs = log.read_text(encoding="utf-8").split().count(record.stem)

partial = record.with_name(f"{record.name}.partial")
partial.write_text(json.dumps(synthetic.header()) + "\n", encoding="utf-8")
failures = json.loads((control / "fail").read_text()) if (control / "fail").exists() else {}
for part, (how_often, exit_code) in failures.items():
    if part in record.stem and runs <= how_often:
        print("first words", file=sys.stderr)
        print(f"run {runs} was told to fail", file=sys.stderr)
        sys.exit(exit_code)
hold = control / "hold"
while hold.exists() and hold.read_text() in record.stem:
    time.sleep(0.02)
partial.write_bytes(synthetic.encode(synthetic.header(), [synthetic.idle(), synthetic.window()]))
partial.rename(record)
