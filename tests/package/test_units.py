"""The units for systemd: what they start, and that their keys are ones that systemd knows."""

import re
import shutil
import subprocess


def test_units(source, polymath):
    service = (source / "packaging/polymath.service").read_text()
    words = re.search(r"^ExecStart=(.*)$", service, re.MULTILINE).group(1).split()
    assert words == ["polymath", "serve", "$OPTIONS"]
    seconds = int(re.search(r"^TimeoutStopSec=(\d+)$", service, re.MULTILINE).group(1))
    drain = int(re.search(r"DRAIN_SECONDS = (\d+)", (source / "src/server/serve.c").read_text()).group(1))
    assert seconds > drain + 5
    port = re.search(r"^ListenStream=127\.0\.0\.1:(\d+)$", (source / "packaging/polymath.socket").read_text(), re.MULTILINE)
    help_text = subprocess.run([polymath, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    assert f"(default: {port.group(1)})" in help_text


def test_systemd_understands_them(source, polymath, tmp_path):
    """systemd-analyze comes with systemd, which tools/setup.sh installs for tests."""
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is missing: tools/setup.sh test installs systemd"
    for name in "polymath.service", "polymath.socket":
        text = (source / "packaging" / name).read_text().replace("ExecStart=polymath", f"ExecStart={polymath}")
        (tmp_path / name).write_text(text)
    done = subprocess.run([analyze, "verify", "--man=no", tmp_path / "polymath.service", tmp_path / "polymath.socket"],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "polymath" in line]
    assert complaints == [], done.stderr
