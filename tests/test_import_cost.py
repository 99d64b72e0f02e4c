"""Importing the package, or loading its plugin in another project, imports no torch and starts no CUDA."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "amp_checks.pytest_plugin.session", "amp_checks.core")


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_no_torch() -> None:
    assert not {"torch", "numpy", "pytest"} & modules_after("import amp_checks")


@pytest.mark.parametrize(
    "name",
    [
        "core",
        "backends",
        "families",
        "suite.planting",
        "records.known_defects",
        "cli",
        "backends.environment",
        "cli.diff",
    ],
)
def test_modules_that_the_command_line_loads_import_no_torch(name: str) -> None:
    assert "torch" not in modules_after(f"import amp_checks.{name}")


def test_the_plugin_loads_nothing_heavy_in_another_projects_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import sys

        def test_nothing_heavy():
            assert not set({HEAVY!r}) & set(sys.modules)
        """
    )
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*amp_checks*")


def test_public_names_load_on_first_use_and_unknown_ones_are_refused() -> None:
    import amp_checks

    for name in amp_checks.__all__:
        assert getattr(amp_checks, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = amp_checks.no_such_name
